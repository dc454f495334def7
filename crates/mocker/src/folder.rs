//! The small model folder embedded in this crate: a tokenizer, its configuration and a chat template.
//!
//! It is enough for a frontend to tokenise as the simulated engine does. `model/make_model.py` makes the files.

use std::io;
use std::path::Path;

/// The files of the folder: name and content.
pub const FILES: [(&str, &[u8]); 4] = [
    ("tokenizer.json", include_bytes!("../model/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../model/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../model/chat_template.jinja")),
    ("config.json", include_bytes!("../model/config.json")),
];

/// Writes the folder into `dir`, which is made if need be; files of the same names are replaced.
pub fn write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    FILES.iter().try_for_each(|(name, content)| std::fs::write(dir.join(name), content))
}

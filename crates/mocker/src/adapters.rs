//! The LoRA adapters that are loaded, by name and by number.

use parking_lot::RwLock;

/// Loads over the life of a server at most.
const MAX_LOADS: usize = 4_096;

/// Adapters; each load has a number, counting from 1, that is never used again.
#[derive(Debug)]
pub(crate) struct Adapters {
    /// One entry per load, in order; a name that was unloaded stays, so that its blocks keep their number.
    loads: RwLock<Vec<Load>>,
}

#[derive(Clone, Debug)]
struct Load {
    name: String,
    loaded: bool,
}

impl Adapters {
    pub(crate) fn new(names: &[String]) -> Self {
        let loads = names.iter().map(|name| Load { name: name.clone(), loaded: true }).collect();
        Self { loads: RwLock::new(loads) }
    }

    /// Names that can be asked for, in order of loading.
    pub(crate) fn names(&self) -> Vec<String> {
        self.loads.read().iter().filter(|load| load.loaded).map(|load| load.name.clone()).collect()
    }

    /// The name that each number stands for, from 1; a name that was loaded again stands at its last number only.
    pub(crate) fn by_number(&self) -> Vec<String> {
        self.loads.read().iter().map(|load| load.name.clone()).collect()
    }

    /// Loads a name. Says why not.
    pub(crate) fn load(&self, name: &str) -> Result<(), String> {
        let mut loads = self.loads.write();
        if loads.iter().any(|load| load.loaded && load.name == name) {
            return Err(format!("The lora adapter '{name}' has already been loaded."));
        }
        if loads.len() >= MAX_LOADS {
            return Err(format!("{MAX_LOADS} adapters were loaded already"));
        }
        loads.iter_mut().filter(|load| load.name == name).for_each(|load| load.name.clear());
        loads.push(Load { name: name.to_owned(), loaded: true });
        Ok(())
    }

    /// Unloads a name; its blocks stay cached. Says whether it was loaded.
    pub(crate) fn unload(&self, name: &str) -> bool {
        let mut loads = self.loads.write();
        let Some(load) = loads.iter_mut().find(|load| load.loaded && load.name == name) else { return false };
        load.loaded = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_has_a_number_of_its_own() {
        let adapters = Adapters::new(&["a".to_owned(), "b".to_owned()]);
        assert!(adapters.load("a").is_err());
        assert!(adapters.unload("a"));
        assert!(!adapters.unload("a"));
        assert_eq!((adapters.names(), adapters.by_number()), (vec!["b".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
        adapters.load("a").unwrap();
        assert_eq!((adapters.names().join(","), adapters.by_number().join(",")), ("b,a".to_owned(), ",b,a".to_owned()));
    }
}

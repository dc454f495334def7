//! The tags of the families that write each parameter between tags of its own.

/// Where what stands in a tag's head ends.
#[derive(Debug)]
pub(super) enum HeadEnd {
    /// At this text, which belongs to the head.
    With(&'static str),
    /// Before the first of these.
    Before(&'static [&'static str]),
}

/// Where the name is in a head.
#[derive(Debug)]
pub(super) enum NameIs {
    /// The head is the name.
    Whole,
    /// Before this text.
    Before(&'static str),
    /// The value of this attribute.
    Attribute(&'static str),
}

/// One kind of element: `<parameter=KEY>..</parameter>`.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) open: &'static str,
    pub(super) head_end: HeadEnd,
    pub(super) name: NameIs,
    /// The first closes the element; before the others it ends too, its own closing tag missing.
    pub(super) ends: &'static [&'static str],
}

/// The tags of one family.
#[derive(Debug)]
pub(super) struct Grammar {
    /// Around a run of calls; `None` where each call stands alone.
    pub(super) outer: Option<(&'static str, &'static str)>,
    pub(super) call: Element,
    pub(super) parameter: Element,
    /// All arguments of a call as one JSON text: what opens it, what ends its head, what closes it.
    pub(super) whole: Option<(&'static str, &'static str, &'static str)>,
    /// One line break at each end of a value belongs to the tags.
    pub(super) broken_lines: bool,
    /// An object `{"name": .., "arguments": ..}` may stand where a call is due.
    pub(super) objects: bool,
}

/// `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`
pub(super) static QWEN: Grammar = Grammar {
    outer: Some(("<tool_call>", "</tool_call>")),
    call: Element { open: "<function=", head_end: HeadEnd::With(">"), name: NameIs::Whole, ends: &["</function>", "</tool_call>"] },
    parameter: Element {
        open: "<parameter=",
        head_end: HeadEnd::With(">"),
        name: NameIs::Whole,
        ends: &["</parameter>", "<parameter=", "</function>"],
    },
    whole: None,
    broken_lines: true,
    objects: true,
};

/// `<minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">VALUE</parameter>\n</invoke>\n</minimax:tool_call>`
pub(super) static MINIMAX_M2: Grammar = Grammar {
    outer: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
    call: Element {
        open: "<invoke ",
        head_end: HeadEnd::With(">"),
        name: NameIs::Attribute("name"),
        ends: &["</invoke>", "</minimax:tool_call>"],
    },
    parameter: Element { open: "<parameter ", head_end: HeadEnd::With(">"), name: NameIs::Attribute("name"), ends: &["</parameter>"] },
    whole: None,
    broken_lines: false,
    objects: false,
};

/// `<atem:function_calls>\n<atem:invoke name="NAME">\n<atem:parameter name="KEY">VALUE</atem:parameter>\n</atem:invoke>..`
pub(super) static MUSE: Grammar = Grammar {
    outer: Some(("<atem:function_calls>", "</atem:function_calls>")),
    call: Element {
        open: "<atem:invoke ",
        head_end: HeadEnd::With(">"),
        name: NameIs::Attribute("name"),
        ends: &["</atem:invoke>", "</atem:function_calls>"],
    },
    parameter: Element {
        open: "<atem:parameter ",
        head_end: HeadEnd::With(">"),
        name: NameIs::Attribute("name"),
        ends: &["</atem:parameter>"],
    },
    whole: None,
    broken_lines: false,
    objects: false,
};

/// `<｜DSML｜function_calls>\n<｜DSML｜invoke name="NAME">\n<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>..`
pub(super) static DEEPSEEK_V3_2: Grammar = dsml(("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"));

/// As V3.2, in a block of another name.
pub(super) static DEEPSEEK_V4: Grammar = dsml(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"));

const fn dsml(outer: (&'static str, &'static str)) -> Grammar {
    Grammar {
        outer: Some(outer),
        call: Element {
            open: "<｜DSML｜invoke ",
            head_end: HeadEnd::With(">"),
            name: NameIs::Attribute("name"),
            ends: &["</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        },
        parameter: Element {
            open: "<｜DSML｜parameter ",
            head_end: HeadEnd::With(">"),
            name: NameIs::Attribute("name"),
            ends: &["</｜DSML｜parameter>"],
        },
        whole: None,
        broken_lines: false,
        objects: false,
    }
}

/// As V4, with `DSML` as a word of its own.
pub(super) static DEEPSEEK_V4_1: Grammar = Grammar {
    outer: Some(("<｜DSML｜ calls>", "</｜DSML｜ calls>")),
    call: Element {
        open: "<｜DSML｜ invoke ",
        head_end: HeadEnd::With(">"),
        name: NameIs::Attribute("name"),
        ends: &["</｜DSML｜ invoke>", "</｜DSML｜ calls>"],
    },
    parameter: Element {
        open: "<｜DSML｜ parameter ",
        head_end: HeadEnd::With(">"),
        name: NameIs::Attribute("name"),
        ends: &["</｜DSML｜ parameter>"],
    },
    whole: None,
    broken_lines: false,
    objects: false,
};

/// `<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>`
pub(super) static GLM: Grammar = Grammar {
    outer: None,
    call: Element {
        open: "<tool_call>",
        head_end: HeadEnd::Before(&["<arg_key>", "</tool_call>"]),
        name: NameIs::Whole,
        ends: &["</tool_call>"],
    },
    parameter: Element {
        open: "<arg_key>",
        head_end: HeadEnd::With("<arg_value>"),
        name: NameIs::Before("</arg_key>"),
        ends: &["</arg_value>"],
    },
    whole: None,
    broken_lines: false,
    objects: false,
};

/// `<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE<|close|>argument<|sep|>..`
pub(super) static KIMI_K3: Grammar = Grammar {
    outer: Some(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
    call: Element {
        open: "<|open|>call ",
        head_end: HeadEnd::With("<|sep|>"),
        name: NameIs::Attribute("tool"),
        ends: &["<|close|>call<|sep|>", "<|close|>tools<|sep|>"],
    },
    parameter: Element {
        open: "<|open|>argument ",
        head_end: HeadEnd::With("<|sep|>"),
        name: NameIs::Attribute("key"),
        ends: &["<|close|>argument<|sep|>"],
    },
    whole: Some(("<|open|>json ", "<|sep|>", "<|close|>json<|sep|>")),
    broken_lines: false,
    objects: false,
};

/// The value of an attribute in a head such as `name="a" string="true"`.
pub(super) fn attribute(head: &str, name: &str) -> Option<String> {
    let mut rest = head;
    loop {
        let (key, behind) = rest.split_once('=')?;
        let behind = behind.trim_start();
        let quote = behind.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let (value, behind) = behind[1..].split_once(quote)?;
        if key.trim() == name {
            return Some(value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
        }
        rest = behind;
    }
}

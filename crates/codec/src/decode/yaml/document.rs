//! The nodes of a document, built from the parser's events.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::{MAX_NODES, scalar::Tag, words};
use crate::decode::MAX_READ_DEPTH;

/// Most anchors of a document.
pub(super) const MAX_ANCHORS: usize = 50_000;
/// Directives may not blow the tags of a document up to more than this many times its size; no tag of YAML's own comes
/// near.
const MAX_EXPANSION: usize = 8;

/// A node in the list of all: less than [`MAX_NODES`].
pub(super) type At = u32;

/// The first document of a body.
pub(super) struct Document<'a> {
    nodes: Nodes<'a>,
}

/// All nodes, in pieces: one list would be copied, and there twice, whenever it grows.
#[derive(Default)]
struct Nodes<'a>(Vec<Vec<YamlNode<'a>>>);

/// Nodes of a piece.
const PIECE: usize = 256;

/// A node takes about 40 bytes, and 4 where it is listed.
pub(super) struct YamlNode<'a> {
    /// Line, counted from 1.
    pub(super) line: u32,
    pub(super) what: What<'a>,
}

pub(super) enum What<'a> {
    /// A scalar without quotes or tag, whose text decides its type.
    Plain(Cow<'a, str>),
    /// True if the scalar is quoted or a block.
    Text(Cow<'a, str>),
    /// A scalar with a tag that gives its type.
    Tagged(Tag, Cow<'a, str>),
    List(Vec<At>),
    /// Keys and values by turns.
    Map(Vec<At>),
    Alias(At, &'a str),
}

impl<'a> Document<'a> {
    /// Reads all nodes before any is converted, like Go: errors of syntax are reported before errors of content.
    ///
    /// # Errors
    /// Syntax error, in Go's words where those are known.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| words::no_text(body, error))?;
        let options = granit_parser::options! {
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_READ_DEPTH,
            block_nesting_limit: MAX_READ_DEPTH,
        };
        let mut builder = Builder { text, tags: text.len().saturating_mul(MAX_EXPANSION), ..Builder::default() };
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| words::broken(body, &error))?;
            if matches!(event, Event::DocumentEnd) {
                break;
            }
            builder.take(event, span)?;
        }
        Ok(Self { nodes: builder.nodes })
    }

    /// Returns the position of the root node; `None` in an empty document.
    pub(super) fn root(&self) -> Option<At> {
        (!self.nodes.0.is_empty()).then_some(0)
    }

    pub(super) fn node(&self, at: At) -> &YamlNode<'a> {
        &self.nodes.0[at as usize / PIECE][at as usize % PIECE]
    }
}

impl<'a> Nodes<'a> {
    fn push(&mut self, node: YamlNode<'a>) -> Result<At, String> {
        if self.0.last().is_none_or(|piece| piece.len() == PIECE) {
            self.0.push(Vec::with_capacity(PIECE));
        }
        let before = (self.0.len() - 1) * PIECE;
        let piece = self.0.last_mut().expect("there is a piece with room");
        let at = before + piece.len();
        if at == MAX_NODES {
            return Err(words::too_many_nodes());
        }
        piece.push(node);
        Ok(at as At)
    }
}

#[derive(Default)]
struct Builder<'a> {
    text: &'a str,
    nodes: Nodes<'a>,
    /// The lists and maps that are not at their end yet.
    open: Vec<At>,
    /// Bytes that tags may still have in their long form: the parser makes it again for each.
    tags: usize,
    /// Nodes by the parser's number of their anchor.
    anchors: HashMap<usize, At>,
}

impl<'a> Builder<'a> {
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), String> {
        if let Some(tag) = event.tag() {
            self.tags = self.tags.checked_sub(tag.handle().len() + tag.suffix().len()).ok_or(words::LONG_TAGS)?;
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.add(scalar(text, style, tag.as_deref().map(Tag::of)), anchor, span)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                let at = self.add(What::List(Vec::new()), anchor, span)?;
                self.open.push(at);
            }
            Event::MappingStart(_, anchor, _) => {
                let at = self.add(What::Map(Vec::new()), anchor, span)?;
                self.open.push(at);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
            }
            Event::Alias(anchor) => {
                let name = span.slice(self.text).unwrap_or_default().trim_start_matches('*');
                let target = *self.anchors.get(&anchor).ok_or_else(|| words::unknown_anchor(name))?;
                self.add(What::Alias(target, name), 0, span)?;
            }
            Event::UnresolvedAlias(name) => return Err(words::unknown_anchor(&name)),
            // Marks of the stream, which are not a part of the tree.
            _ => {}
        }
        Ok(())
    }

    /// Adds a node to the open collection. Its anchor is valid from here on, also inside the node itself.
    fn add(&mut self, what: What<'a>, anchor: usize, span: Span) -> Result<At, String> {
        let at = self.nodes.push(YamlNode { line: span.start.line() as u32, what })?;
        if let Some(above) = self.open.last().map(|above| *above as usize)
            && let What::List(items) | What::Map(items) = &mut self.nodes.0[above / PIECE][above % PIECE].what
        {
            items.push(at);
        }
        if anchor != 0 {
            self.anchors.insert(anchor, at);
            if self.anchors.len() > MAX_ANCHORS {
                return Err(words::too_many_anchors());
            }
        }
        Ok(at)
    }
}

fn scalar<'a>(text: Cow<'a, str>, style: ScalarStyle, tag: Option<Tag>) -> What<'a> {
    match (tag, style) {
        (Some(tag), _) => What::Tagged(tag, text),
        (None, ScalarStyle::Plain) => What::Plain(text),
        (None, _) => What::Text(text),
    }
}

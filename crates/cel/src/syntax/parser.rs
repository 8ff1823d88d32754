//! Recursive-descent parser of CEL's grammar.

use super::lexer::{Lexeme, LexerToken, tokens};
use super::source::Offsets;
use super::{
    CallExpr, Expr, ExprKind, Id, ListElement, Literal, MAX_CODE_POINTS, MAX_DEPTH, MapEntry, Problems, SourceText,
    StructField, literal, macros, operator,
};
use std::sync::Arc;

/// Words that may name fields, but never variables.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// Words of the grammar that are not field names.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Returns true for a reserved word, which may still name a field.
pub(crate) fn is_reserved(word: &str) -> bool {
    KEYWORDS.contains(&word) || RESERVED.contains(&word)
}

/// Tokens that can begin an expression, in ANTLR's words.
const BEGINNINGS: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// Returns true for a token that can begin an expression.
fn begins(token: LexerToken) -> bool {
    match token {
        LexerToken::Fixed(fixed) => matches!(fixed, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null"),
        LexerToken::Escaped | LexerToken::End => false,
        _ => true,
    }
}

/// Parsed expression.
#[derive(Debug)]
pub(crate) struct ParsedExpression {
    pub(crate) root: Expr,
    pub(crate) offsets: Offsets,
}

/// Parses an expression.
///
/// # Errors
/// Returns the problems of the text, in cel-go's words except where ANTLR's own reports differ.
pub(crate) fn parse(source: &SourceText) -> Result<ParsedExpression, Problems> {
    let text = source.characters();
    let mut problems = Problems::default();
    if text.len() > MAX_CODE_POINTS {
        problems.add(
            None,
            format!("expression code point size exceeds limit: size: {}, limit {MAX_CODE_POINTS}", text.len()),
        );
        return Err(problems);
    }
    let tokens = tokens(text, |at, unknown| {
        problems.add(Some(at), format!("Syntax error: token recognition error at: '{unknown}'"))
    });
    let mut parser = ExpressionParser { text, tokens, at: 0, depth: 0, offsets: Offsets::default(), problems };
    let root = match parser.start() {
        Ok(root) if parser.problems.is_empty() => root,
        Ok(_) | Err(ParserStop) => return Err(parser.problems),
    };
    Ok(ParsedExpression { root, offsets: parser.offsets })
}

/// A problem was reported and parsing cannot continue.
pub(super) struct ParserStop;

pub(super) struct ExpressionParser<'s> {
    text: &'s [char],
    tokens: Vec<Lexeme>,
    at: usize,
    depth: usize,
    offsets: Offsets,
    problems: Problems,
}

impl ExpressionParser<'_> {
    /// Creates a node that begins at `offset`.
    pub(super) fn node(&mut self, offset: usize, kind: ExprKind) -> Expr {
        Expr { id: self.offsets.add(offset), kind }
    }

    pub(super) fn offset(&self, id: Id) -> usize {
        self.offsets.of(id)
    }

    /// Records a problem and returns a placeholder node.
    pub(super) fn problem(&mut self, offset: usize, message: impl Into<String>) -> Expr {
        self.problems.add(Some(offset), message.into());
        self.node(offset, ExprKind::Missing)
    }

    fn peek(&self) -> Lexeme {
        self.tokens[self.at]
    }

    fn ahead(&self, count: usize) -> LexerToken {
        self.tokens.get(self.at + count).map_or(LexerToken::End, |lexeme| lexeme.token)
    }

    fn next(&mut self) -> Lexeme {
        let lexeme = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        lexeme
    }

    fn accept(&mut self, fixed: &'static str) -> Option<Lexeme> {
        (self.peek().token == LexerToken::Fixed(fixed)).then(|| self.next())
    }

    fn expect(&mut self, fixed: &'static str, expecting: &str) -> Result<Lexeme, ParserStop> {
        match self.accept(fixed) {
            Some(lexeme) => Ok(lexeme),
            None => Err(self.unexpected(expecting)),
        }
    }

    fn text(&self, lexeme: Lexeme) -> String {
        self.text[lexeme.start..lexeme.end].iter().collect()
    }

    fn unexpected(&mut self, expecting: &str) -> ParserStop {
        let lexeme = self.peek();
        let found = if lexeme.token == LexerToken::End { "<EOF>".to_owned() } else { self.text(lexeme) };
        self.problems
            .add(Some(lexeme.start), format!("Syntax error: mismatched input '{found}' expecting {expecting}"));
        ParserStop
    }

    /// Reports an extraneous token and skips it, as ANTLR does if the next token fits.
    fn extraneous(&mut self, expecting: &str) {
        let lexeme = self.next();
        let found = self.text(lexeme);
        self.problems
            .add(Some(lexeme.start), format!("Syntax error: extraneous input '{found}' expecting {expecting}"));
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, ParserStop>) -> Result<T, ParserStop> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            self.problems.add(None, format!("expression recursion limit exceeded: {MAX_DEPTH}"));
            return Err(ParserStop);
        }
        let read = read(self);
        self.depth -= 1;
        read
    }

    fn start(&mut self) -> Result<Expr, ParserStop> {
        let root = self.expr()?;
        if self.peek().token == LexerToken::End {
            return Ok(root);
        }
        match self.ahead(1) {
            LexerToken::End => self.extraneous("<EOF>"),
            _ => drop(self.unexpected("<EOF>")),
        }
        Err(ParserStop)
    }

    fn expr(&mut self) -> Result<Expr, ParserStop> {
        self.deeper(|parser| {
            let condition = parser.junction(operator::OR)?;
            let Some(question) = parser.accept("?") else { return Ok(condition) };
            let yes = parser.junction(operator::OR)?;
            parser.expect(":", "':'")?;
            let no = parser.expr()?;
            Ok(parser.call(question.start, operator::CONDITIONAL, vec![condition, yes, no]))
        })
    }

    fn call(&mut self, offset: usize, function: &str, args: Vec<Expr>) -> Expr {
        self.node(offset, ExprKind::Call(CallExpr { function: function.into(), target: None, args }))
    }

    /// Parses `a || b || c` or `a && b && c`, which becomes a balanced tree.
    fn junction(&mut self, function: &'static str) -> Result<Expr, ParserStop> {
        let sign = if function == operator::OR { "||" } else { "&&" };
        let mut terms = vec![self.term(function)?];
        let mut operators = Vec::new();
        while let Some(lexeme) = self.accept(sign) {
            terms.push(self.term(function)?);
            operators.push(lexeme.start);
        }
        let mut terms: Vec<Option<Expr>> = terms.into_iter().map(Some).collect();
        Ok(self.balanced(function, &operators, &mut terms))
    }

    fn term(&mut self, function: &'static str) -> Result<Expr, ParserStop> {
        if function == operator::OR { self.junction(operator::AND) } else { self.relation() }
    }

    fn balanced(&mut self, function: &str, operators: &[usize], terms: &mut [Option<Expr>]) -> Expr {
        if operators.is_empty() {
            return terms[0].take().expect("each term is taken once");
        }
        let middle = operators.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let left = self.balanced(function, &operators[..middle], left);
        let right = self.balanced(function, &operators[middle + 1..], right);
        self.call(operators[middle], function, vec![left, right])
    }

    fn relation(&mut self) -> Result<Expr, ParserStop> {
        let mut left = self.sum()?;
        let depth = self.depth;
        while let LexerToken::Fixed(sign @ ("<" | "<=" | ">=" | ">" | "==" | "!=" | "in")) = self.peek().token {
            let lexeme = self.next();
            self.grow()?;
            let right = self.sum()?;
            let function = if sign == "in" { operator::IN.to_owned() } else { format!("_{sign}_") };
            left = self.call(lexeme.start, &function, vec![left, right]);
        }
        self.depth = depth;
        Ok(left)
    }

    /// A chain of operators nests as deep as it is long.
    fn grow(&mut self) -> Result<(), ParserStop> {
        self.deeper(|_| Ok(()))?;
        self.depth += 1;
        Ok(())
    }

    fn sum(&mut self) -> Result<Expr, ParserStop> {
        let depth = self.depth;
        let mut left = self.product()?;
        while let LexerToken::Fixed(sign @ ("+" | "-")) = self.peek().token {
            let lexeme = self.next();
            self.grow()?;
            let right = self.product()?;
            left = self.call(lexeme.start, &format!("_{sign}_"), vec![left, right]);
        }
        self.depth = depth;
        Ok(left)
    }

    fn product(&mut self) -> Result<Expr, ParserStop> {
        let depth = self.depth;
        let mut left = self.unary()?;
        while let LexerToken::Fixed(sign @ ("*" | "/" | "%")) = self.peek().token {
            let lexeme = self.next();
            self.grow()?;
            let right = self.unary()?;
            left = self.call(lexeme.start, &format!("_{sign}_"), vec![left, right]);
        }
        self.depth = depth;
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, ParserStop> {
        if self.peek().token != LexerToken::End && !begins(self.peek().token) && begins(self.ahead(1)) {
            self.extraneous(BEGINNINGS);
        }
        let first = self.peek();
        let (sign, function) = match first.token {
            LexerToken::Fixed("!") => ("!", operator::NOT),
            // A sign before a number is part of the number.
            LexerToken::Fixed("-") if !matches!(self.ahead(1), LexerToken::Int | LexerToken::Float) => {
                ("-", operator::NEGATE)
            }
            _ => return self.member(),
        };
        let mut count = 0;
        while self.peek().token == LexerToken::Fixed(sign)
            && !(sign == "-" && count > 0 && matches!(self.ahead(1), LexerToken::Int | LexerToken::Float))
        {
            self.next();
            count += 1;
        }
        let operand = self.member()?;
        Ok(if count % 2 == 0 { operand } else { self.call(first.start, function, vec![operand]) })
    }

    fn member(&mut self) -> Result<Expr, ParserStop> {
        let depth = self.depth;
        let mut operand = self.primary()?;
        loop {
            let lexeme = self.peek();
            operand = match lexeme.token {
                LexerToken::Fixed(".") => self.select(operand)?,
                LexerToken::Fixed("[") => self.index(operand)?,
                _ => break,
            };
            self.grow()?;
        }
        self.depth = depth;
        Ok(operand)
    }

    fn select(&mut self, operand: Expr) -> Result<Expr, ParserStop> {
        let dot = self.next();
        let optional = self.accept("?").is_some();
        let name = self.peek();
        let field = match name.token {
            LexerToken::Ident => self.text(name),
            LexerToken::Escaped => {
                self.problems.add(Some(name.start), "unsupported syntax: '`'".to_owned());
                return Err(ParserStop);
            }
            _ if optional => return Err(self.unexpected("{IDENTIFIER, ESC_IDENTIFIER}")),
            _ => return Err(self.no_field(name)),
        };
        self.next();
        if optional {
            let constant = self.node(name.start, ExprKind::Literal(Literal::String(field.into())));
            return Ok(self.call(dot.start, operator::OPT_SELECT, vec![operand, constant]));
        }
        if let Some(open) = self.accept("(") {
            let args = self.arguments()?;
            return Ok(macros::member(self, open.start, &field, operand, args));
        }
        Ok(self.node(dot.start, ExprKind::Select { operand: Box::new(operand), field: field.into(), test_only: false }))
    }

    fn no_field(&mut self, name: Lexeme) -> ParserStop {
        match name.token {
            LexerToken::Fixed("true" | "false" | "null") => self.unexpected("IDENTIFIER"),
            _ => self.no_name(name),
        }
    }

    /// After a dot there is none.
    fn no_name(&mut self, found: Lexeme) -> ParserStop {
        // The end of input is not a text.
        let text = if found.token == LexerToken::End { String::new() } else { self.text(found) };
        self.problems.add(Some(found.start), format!("Syntax error: no viable alternative at input '.{text}'"));
        ParserStop
    }

    fn index(&mut self, operand: Expr) -> Result<Expr, ParserStop> {
        let open = self.next();
        let optional = self.accept("?").is_some();
        let index = self.expr()?;
        self.expect("]", "']'")?;
        let function = if optional { operator::OPT_INDEX } else { operator::INDEX };
        Ok(self.call(open.start, function, vec![operand, index]))
    }

    /// Parses the arguments of a call, after its `(`.
    fn arguments(&mut self) -> Result<Vec<Expr>, ParserStop> {
        let mut args = Vec::new();
        if self.accept(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.accept(",").is_none() {
                self.expect(")", "')'")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, ParserStop> {
        let lexeme = self.peek();
        match lexeme.token {
            LexerToken::Ident => self.name(""),
            LexerToken::Fixed(".") => {
                self.next();
                let name = self.peek();
                if name.token == LexerToken::Ident { self.name(".") } else { Err(self.no_name(name)) }
            }
            LexerToken::Fixed("(") => {
                self.next();
                let inner = self.expr()?;
                self.expect(")", "')'")?;
                Ok(inner)
            }
            LexerToken::Fixed("[") => self.list(),
            LexerToken::Fixed("{") => self.map(),
            _ => self.constant(lexeme),
        }
    }

    fn constant(&mut self, lexeme: Lexeme) -> Result<Expr, ParserStop> {
        let negative = lexeme.token == LexerToken::Fixed("-");
        let text = |parser: &Self| parser.text(parser.peek());
        if negative {
            self.next();
        }
        let value = match self.peek().token {
            LexerToken::Int => literal::int(&text(self), negative),
            LexerToken::Float => literal::double(&text(self), negative),
            LexerToken::Uint => literal::uint(&text(self)),
            LexerToken::String => literal::string(&text(self)),
            LexerToken::Bytes => literal::bytes(&text(self)[1..]),
            LexerToken::Fixed("true") => Ok(Literal::Bool(true)),
            LexerToken::Fixed("false") => Ok(Literal::Bool(false)),
            LexerToken::Fixed("null") => Ok(Literal::Null),
            LexerToken::Ident | LexerToken::Escaped | LexerToken::Fixed(_) | LexerToken::End => {
                return Err(self.unexpected(BEGINNINGS));
            }
        };
        self.next();
        Ok(match value {
            Ok(value) => self.node(lexeme.start, ExprKind::Literal(value)),
            Err(message) => self.problem(lexeme.start, message),
        })
    }

    /// Parses a variable, a call or a struct.
    fn name(&mut self, dot: &str) -> Result<Expr, ParserStop> {
        let lexeme = self.next();
        let word = self.text(lexeme);
        let name: Arc<str> = format!("{dot}{word}").into();
        if let Some(fields) = self.structure(&name)? {
            return Ok(fields);
        }
        if RESERVED.contains(&word.as_str()) {
            return Ok(self.problem(lexeme.start - dot.len(), format!("reserved identifier: {word}")));
        }
        if let Some(open) = self.accept("(") {
            let args = self.arguments()?;
            return Ok(macros::global(self, open.start, &name, args));
        }
        Ok(self.node(lexeme.start, ExprKind::Ident(name)))
    }

    /// Parses `a.b.C{…}`, if an opening brace follows the names.
    fn structure(&mut self, first: &str) -> Result<Option<Expr>, ParserStop> {
        let mut count = 0;
        while self.ahead(count) == LexerToken::Fixed(".") && self.ahead(count + 1) == LexerToken::Ident {
            count += 2;
        }
        if self.ahead(count) != LexerToken::Fixed("{") {
            return Ok(None);
        }
        let mut name = first.to_owned();
        for _ in 0..count {
            let lexeme = self.next();
            name += &self.text(lexeme);
        }
        let open = self.next();
        let mut fields = Vec::new();
        while self.peek().token != LexerToken::Fixed("}") {
            fields.push(self.field(fields.is_empty())?);
            if self.accept(",").is_none() {
                break;
            }
        }
        self.expect("}", "{'}', ','}")?;
        Ok(Some(self.node(open.start, ExprKind::Struct { name: name.into(), fields })))
    }

    fn field(&mut self, is_first: bool) -> Result<StructField, ParserStop> {
        let optional = self.accept("?").is_some();
        let name = self.peek();
        if name.token != LexerToken::Ident {
            return Err(self.unexpected(match (optional, is_first) {
                (true, _) => "{IDENTIFIER, ESC_IDENTIFIER}",
                (false, true) => "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}",
                (false, false) => "{'}', '?', IDENTIFIER, ESC_IDENTIFIER}",
            }));
        }
        self.next();
        let colon = self.expect(":", "':'")?;
        let id = self.offsets.add(colon.start);
        let value = self.expr()?;
        Ok(StructField { id, name: self.text(name).into(), value, optional })
    }

    fn list(&mut self) -> Result<Expr, ParserStop> {
        let open = self.next();
        let mut elements = Vec::new();
        while self.peek().token != LexerToken::Fixed("]") {
            let optional = self.accept("?").is_some();
            elements.push(ListElement { value: self.expr()?, optional });
            if self.accept(",").is_none() {
                break;
            }
        }
        self.expect("]", "']'")?;
        Ok(self.node(open.start, ExprKind::List(elements)))
    }

    fn map(&mut self) -> Result<Expr, ParserStop> {
        let open = self.next();
        let mut entries = Vec::new();
        while self.peek().token != LexerToken::Fixed("}") {
            let optional = self.accept("?").is_some();
            let key = self.expr()?;
            self.expect(":", "':'")?;
            entries.push(MapEntry { key, value: self.expr()?, optional });
            if self.accept(",").is_none() {
                break;
            }
        }
        self.expect("}", "'}'")?;
        Ok(self.node(open.start, ExprKind::Map(entries)))
    }
}

//! The text form of selectors, read as upstream's parser reads it, with its words about what it did not expect
//! (apimachinery `labels.Parse`).

use std::collections::BTreeSet;

use super::{InvalidSelector, Requirement, Test, key_faults, value_faults};

/// What a text is cut into. Words are keys, values, `in` and `notin` alike: it depends on where they stand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'t> {
    End,
    Word(&'t str),
    Symbol(&'t str),
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    In,
    NotIn,
    Equal,
    NotEqual,
    Greater,
    Less,
}

type Values = BTreeSet<String>;

/// All requirements of a selector.
///
/// # Errors
/// What was found where something else was expected.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, InvalidSelector> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::End => return Ok(requirements),
            Token::Word(_) | Token::Symbol("!") => {}
            other => return Err(unexpected(other, ", expected: !, identifier, or 'end of string'")),
        }
        let wrong = |InvalidSelector(why)| InvalidSelector(format!("unable to parse requirement: {why}"));
        requirements.push(parser.requirement().map_err(wrong)?);
        match parser.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => {}
            other => return Err(unexpected(other, ", expected: ',' or 'end of string'")),
        }
        let more = parser.peek();
        if !matches!(more, Token::Word(_) | Token::Symbol("!")) {
            return Err(unexpected(more, ", expected: identifier after ','"));
        }
    }
}

fn unexpected(found: Token<'_>, expected: &str) -> InvalidSelector {
    let found = match found {
        Token::End => "",
        Token::Word(text) | Token::Symbol(text) => text,
    };
    InvalidSelector(format!("found '{found}'{expected}"))
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_symbol = |c: char| "=!(),><".contains(c);
    let is_blank = |c: char| " \t\r\n".contains(c);
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_blank);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if ["==", "!="].iter().any(|symbol| rest.starts_with(symbol)) => 2,
            first if is_symbol(first) => 1,
            _ => rest.find(|c| is_symbol(c) || is_blank(c)).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(if is_symbol(first) { Token::Symbol(token) } else { Token::Word(token) });
        rest = after.trim_start_matches(is_blank);
    }
    tokens
}

struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token<'t> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        let negated = self.peek() == Token::Symbol("!");
        self.at += usize::from(negated);
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(unexpected(other, ", expected: identifier")),
        };
        let faults = key_faults(key);
        if !faults.is_empty() {
            return Err(InvalidSelector(format!("<nil>: Invalid value: {key:?}: {}", faults.join("; "))));
        }
        let test = match self.peek() {
            _ if negated => Test::Missing,
            Token::End | Token::Symbol(",") => Test::Exists,
            Token::Word(_) | Token::Symbol(_) => self.test(key)?,
        };
        Ok(Requirement { key: key.to_owned(), test })
    }

    fn test(&mut self, key: &str) -> Result<Test, InvalidSelector> {
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            Operator::Equal | Operator::NotEqual | Operator::Greater | Operator::Less => self.one_value()?,
        };
        check_values(key, operator, &values)?;
        let number = || values.first().and_then(|value| value.parse().ok()).unwrap_or_default();
        Ok(match operator {
            Operator::In | Operator::Equal => Test::In(values.into_iter().collect()),
            Operator::NotIn | Operator::NotEqual => Test::NotIn(values.into_iter().collect()),
            Operator::Greater => Test::Greater(number()),
            Operator::Less => Test::Less(number()),
        })
    }

    fn operator(&mut self) -> Result<Operator, InvalidSelector> {
        match self.next() {
            Token::Word("in") => Ok(Operator::In),
            Token::Word("notin") => Ok(Operator::NotIn),
            Token::Symbol("=" | "==") => Ok(Operator::Equal),
            Token::Symbol("!=") => Ok(Operator::NotEqual),
            Token::Symbol(">") => Ok(Operator::Greater),
            Token::Symbol("<") => Ok(Operator::Less),
            other => Err(unexpected(other, ", expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// `(x,y,z)`; each may be empty.
    fn values(&mut self) -> Result<Values, InvalidSelector> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(unexpected(other, " expected: '('")),
        }
        match self.peek() {
            Token::Word(_) | Token::Symbol(",") => self.list(),
            Token::Symbol(")") => {
                self.at += 1;
                Ok(Values::from([String::new()]))
            }
            other => Err(unexpected(other, ", expected: ',', ')' or identifier")),
        }
    }

    fn list(&mut self) -> Result<Values, InvalidSelector> {
        let mut values = Values::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.insert(value.to_owned());
                    match self.peek() {
                        Token::Symbol("," | ")") => {}
                        other => return Err(unexpected(other, ", expected: ',' or ')'")),
                    }
                }
                Token::Symbol(",") => {
                    if values.is_empty() || matches!(self.peek(), Token::Symbol("," | ")")) {
                        values.insert(String::new());
                    }
                }
                other => return Err(unexpected(other, ", expected: ',', or identifier")),
            }
            if self.peek() == Token::Symbol(")") {
                self.at += 1;
                return Ok(values);
            }
        }
    }

    /// What stands after `=`; nothing is the empty value.
    fn one_value(&mut self) -> Result<Values, InvalidSelector> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(Values::from([String::new()])),
            Token::Word(value) => {
                self.at += 1;
                Ok(Values::from([value.to_owned()]))
            }
            other => Err(unexpected(other, ", expected: identifier")),
        }
    }
}

fn check_values(key: &str, operator: Operator, values: &Values) -> Result<(), InvalidSelector> {
    let mut faults = Vec::new();
    if matches!(operator, Operator::Greater | Operator::Less) {
        let odd = values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err());
        faults.extend(odd.map(|(index, value)| {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            format!("values[{index}]: Invalid value: {value:?}: {why}")
        }));
    }
    for (index, value) in values.iter().enumerate() {
        let wrong = value_faults(value);
        if !wrong.is_empty() {
            faults.push(format!("values[{index}][{key}]: Invalid value: {value:?}: {}", wrong.join("; ")));
        }
    }
    match faults.as_slice() {
        [] => Ok(()),
        [one] => Err(InvalidSelector(one.clone())),
        several => Err(InvalidSelector(format!("[{}]", several.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_selector_is_said_in_upstreams_words() {
        for (text, expected) in [
            ("a==b=c", "found '=', expected: ',' or 'end of string'"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
        }
        let long = "x".repeat(64);
        for (text, expected) in [
            ("-a=b", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of".to_owned()),
            (
                "a=-b",
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label must be".to_owned(),
            ),
            ("a=b,c=", String::new()),
            (
                &format!("a={long}"),
                format!("unable to parse requirement: values[0][a]: Invalid value: {long:?}: must be no"),
            ),
        ] {
            let said = parse(text).map_or_else(|why| why.to_string(), |_| String::new());
            assert!(said.starts_with(&expected) && said.is_empty() == expected.is_empty(), "{text}: {said}");
        }
    }
}

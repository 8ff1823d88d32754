//! Parser of the text form of selectors, with kube-apiserver's error texts (apimachinery `labels.Parse`).

use std::collections::BTreeSet;

use super::{InvalidSelector, Requirement, RequirementTest, key_faults, value_faults};

/// Token of a selector. Keys, values, `in` and `notin` are all words; only their position distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SelectorToken<'t> {
    End,
    Word(&'t str),
    Symbol(&'t str),
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SelectorOperator {
    In,
    NotIn,
    Equal,
    NotEqual,
    Greater,
    Less,
}

type Values = BTreeSet<String>;

/// Parses all requirements of a selector.
///
/// # Errors
/// Names the unexpected and the expected token.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, InvalidSelector> {
    let mut parser = SelectorParser { tokens: tokens(text), at: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            SelectorToken::End => return Ok(requirements),
            SelectorToken::Word(_) | SelectorToken::Symbol("!") => {}
            other => return Err(unexpected(other, ", expected: !, identifier, or 'end of string'")),
        }
        let wrong = |InvalidSelector(why)| InvalidSelector(format!("unable to parse requirement: {why}"));
        requirements.push(parser.requirement().map_err(wrong)?);
        match parser.next() {
            SelectorToken::End => return Ok(requirements),
            SelectorToken::Symbol(",") => {}
            other => return Err(unexpected(other, ", expected: ',' or 'end of string'")),
        }
        let more = parser.peek();
        if !matches!(more, SelectorToken::Word(_) | SelectorToken::Symbol("!")) {
            return Err(unexpected(more, ", expected: identifier after ','"));
        }
    }
}

fn unexpected(found: SelectorToken<'_>, expected: &str) -> InvalidSelector {
    let found = match found {
        SelectorToken::End => "",
        SelectorToken::Word(text) | SelectorToken::Symbol(text) => text,
    };
    InvalidSelector(format!("found '{found}'{expected}"))
}

fn tokens(text: &str) -> Vec<SelectorToken<'_>> {
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
        tokens.push(if is_symbol(first) { SelectorToken::Symbol(token) } else { SelectorToken::Word(token) });
        rest = after.trim_start_matches(is_blank);
    }
    tokens
}

struct SelectorParser<'t> {
    tokens: Vec<SelectorToken<'t>>,
    at: usize,
}

impl<'t> SelectorParser<'t> {
    fn peek(&self) -> SelectorToken<'t> {
        self.tokens.get(self.at).copied().unwrap_or(SelectorToken::End)
    }

    fn next(&mut self) -> SelectorToken<'t> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        let negated = self.peek() == SelectorToken::Symbol("!");
        self.at += usize::from(negated);
        let key = match self.next() {
            SelectorToken::Word(key) => key,
            other => return Err(unexpected(other, ", expected: identifier")),
        };
        let faults = key_faults(key);
        if !faults.is_empty() {
            return Err(InvalidSelector(format!("<nil>: Invalid value: {key:?}: {}", faults.join("; "))));
        }
        let test = match self.peek() {
            _ if negated => RequirementTest::Missing,
            SelectorToken::End | SelectorToken::Symbol(",") => RequirementTest::Exists,
            SelectorToken::Word(_) | SelectorToken::Symbol(_) => self.test(key)?,
        };
        Ok(Requirement { key: key.to_owned(), test })
    }

    fn test(&mut self, key: &str) -> Result<RequirementTest, InvalidSelector> {
        let operator = self.operator()?;
        let values = match operator {
            SelectorOperator::In | SelectorOperator::NotIn => self.values()?,
            SelectorOperator::Equal
            | SelectorOperator::NotEqual
            | SelectorOperator::Greater
            | SelectorOperator::Less => self.one_value()?,
        };
        check_values(key, operator, &values)?;
        let number = || values.first().and_then(|value| value.parse().ok()).unwrap_or_default();
        Ok(match operator {
            SelectorOperator::In | SelectorOperator::Equal => RequirementTest::In(values.into_iter().collect()),
            SelectorOperator::NotIn | SelectorOperator::NotEqual => {
                RequirementTest::NotIn(values.into_iter().collect())
            }
            SelectorOperator::Greater => RequirementTest::Greater(number()),
            SelectorOperator::Less => RequirementTest::Less(number()),
        })
    }

    fn operator(&mut self) -> Result<SelectorOperator, InvalidSelector> {
        match self.next() {
            SelectorToken::Word("in") => Ok(SelectorOperator::In),
            SelectorToken::Word("notin") => Ok(SelectorOperator::NotIn),
            SelectorToken::Symbol("=" | "==") => Ok(SelectorOperator::Equal),
            SelectorToken::Symbol("!=") => Ok(SelectorOperator::NotEqual),
            SelectorToken::Symbol(">") => Ok(SelectorOperator::Greater),
            SelectorToken::Symbol("<") => Ok(SelectorOperator::Less),
            other => Err(unexpected(other, ", expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// Parses `(x,y,z)`; each may be empty.
    fn values(&mut self) -> Result<Values, InvalidSelector> {
        match self.next() {
            SelectorToken::Symbol("(") => {}
            other => return Err(unexpected(other, " expected: '('")),
        }
        match self.peek() {
            SelectorToken::Word(_) | SelectorToken::Symbol(",") => self.list(),
            SelectorToken::Symbol(")") => {
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
                SelectorToken::Word(value) => {
                    values.insert(value.to_owned());
                    match self.peek() {
                        SelectorToken::Symbol("," | ")") => {}
                        other => return Err(unexpected(other, ", expected: ',' or ')'")),
                    }
                }
                SelectorToken::Symbol(",") => {
                    if values.is_empty() || matches!(self.peek(), SelectorToken::Symbol("," | ")")) {
                        values.insert(String::new());
                    }
                }
                other => return Err(unexpected(other, ", expected: ',', or identifier")),
            }
            if self.peek() == SelectorToken::Symbol(")") {
                self.at += 1;
                return Ok(values);
            }
        }
    }

    /// Parses the value after `=`; a missing one is empty.
    fn one_value(&mut self) -> Result<Values, InvalidSelector> {
        match self.peek() {
            SelectorToken::End | SelectorToken::Symbol(",") => Ok(Values::from([String::new()])),
            SelectorToken::Word(value) => {
                self.at += 1;
                Ok(Values::from([value.to_owned()]))
            }
            other => Err(unexpected(other, ", expected: identifier")),
        }
    }
}

fn check_values(key: &str, operator: SelectorOperator, values: &Values) -> Result<(), InvalidSelector> {
    let mut faults = Vec::new();
    if matches!(operator, SelectorOperator::Greater | SelectorOperator::Less) {
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
    fn invalid_selectors_have_kube_apiservers_messages() {
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

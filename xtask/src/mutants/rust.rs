//! Mutants of Rust sources, all in one text.
//!
//! Each mutant changes one place while its number is selected. This module is pure: it turns a text into another text.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, GenericArgument, PathArguments, ReturnType, Signature, Stmt, Type, UnOp};

/// One change of a text: code around a place, which checks the mutant's number.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// The function, the place and the change. The name is unique within the text, and has no line numbers.
    pub(crate) name: String,
    at: Range<usize>,
    /// The code before the check, between the check and the place, and after the place.
    around: [String; 3],
}

/// A text with mutants.
#[derive(Debug)]
pub(crate) struct Mutated {
    pub(crate) text: String,
    /// The bytes of each mutant: the enclosed text plus the text added before the place.
    places: Vec<(Range<usize>, usize)>,
}

impl Mutated {
    /// Returns the number of the innermost mutant around a byte.
    pub(crate) fn mutant_at(&self, byte: usize) -> Option<usize> {
        let around = self.places.iter().filter(|(place, _)| place.contains(&byte));
        around.min_by_key(|(place, _)| place.len()).map(|(_, number)| *number)
    }
}

/// Returns the mutants of a text, each outer mutant before its inner mutants.
pub(crate) fn mutants(text: &str) -> Result<Vec<Mutant>> {
    let file = syn::parse_file(text).context("cannot parse")?;
    let mut finder = Finder { text, path: Vec::new(), found: Vec::new(), names: BTreeMap::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

/// Returns the names of the modules that a text declares only for tests.
pub(crate) fn test_modules(text: &str) -> Result<Vec<String>> {
    let file = syn::parse_file(text).context("cannot parse")?;
    let modules = file.items.into_iter().filter_map(|item| match item {
        syn::Item::Mod(module) if is_conditional(&module.attrs) => Some(module.ident.to_string()),
        _ => None,
    });
    Ok(modules.collect())
}

/// Inserts mutants into a text. `call` is the check; its `{}` stands for the mutant's number.
pub(crate) fn with_mutants(text: &str, mutants: &[(usize, &Mutant)], call: &str) -> Mutated {
    // Where places touch, an end comes before a beginning. An outer place begins first and ends last.
    let begins = mutants.iter().enumerate().map(|(order, (_, mutant))| (mutant.at.start, 1, order));
    let ends =
        mutants.iter().enumerate().map(|(order, (_, mutant))| (mutant.at.end, 0, mutants.len() - order));
    // An empty place only inserts code and needs no end.
    let ends = ends.filter(|(.., reversed)| {
        mutants.get(mutants.len() - reversed).is_some_and(|(_, mutant)| !mutant.at.is_empty())
    });
    let mut events: Vec<(usize, u8, usize)> = begins.chain(ends).collect();
    events.sort_unstable();
    let (mut new, mut places, mut copied) = (String::new(), Vec::new(), 0);
    let mut began = vec![0; mutants.len()];
    for (at, kind, order) in events {
        new.push_str(text.get(copied..at).unwrap_or_default());
        copied = at;
        let order = if kind == 0 { mutants.len() - order } else { order };
        let (Some((number, mutant)), Some(start)) = (mutants.get(order), began.get_mut(order)) else {
            continue;
        };
        let [before, between, after] = &mutant.around;
        if kind == 0 {
            new.push_str(after);
            places.push((*start..new.len(), *number));
        } else {
            *start = new.len();
            new.push_str(&format!("{before}{}{between}", call.replace("{}", &number.to_string())));
            places.push((*start..new.len(), *number));
        }
    }
    new.push_str(text.get(copied..).unwrap_or_default());
    Mutated { text: new, places }
}

struct Finder<'a> {
    text: &'a str,
    /// The type and the function that are visited.
    path: Vec<String>,
    found: Vec<Mutant>,
    /// Number of mutants with each name.
    names: BTreeMap<String, usize>,
}

impl Finder<'_> {
    fn add(&mut self, at: Range<usize>, what: &str, around: [&str; 3]) {
        let shown: Vec<&str> =
            self.text.get(at.clone()).unwrap_or_default().split_ascii_whitespace().collect();
        let mut shown = shown.join(" ").replace("=>", "->");
        if let Some((end, _)) = shown.char_indices().nth(SHOWN) {
            shown.truncate(end);
            shown.push_str("..");
        }
        let place = if shown.is_empty() { String::new() } else { format!("`{shown}` ") };
        let mut name = format!("{}: {place}{what}", self.path.join("::"));
        let same = self.names.entry(name.clone()).or_default();
        *same += 1;
        if *same > 1 {
            name = format!("{name} (no. {same})");
        }
        self.found.push(Mutant { name, at, around: around.map(str::to_owned) });
    }

    /// Returns the original text of a part.
    fn original(&self, part: &impl Spanned) -> String {
        self.text.get(part.span().byte_range()).unwrap_or_default().to_owned()
    }

    /// Visits a condition. It becomes true or false, but only if that differs from the mutants of its parts.
    fn condition(&mut self, condition: &Expr, becomes_true: bool, becomes_false: bool) {
        match condition {
            Expr::Paren(inner) => self.condition(&inner.expr, becomes_true, becomes_false),
            Expr::Let(pattern) => self.visit_expr(&pattern.expr),
            Expr::Binary(both) if matches!(both.op, BinOp::And(_)) => {
                self.condition(&both.left, true, false);
                self.condition(&both.right, true, becomes_false);
            }
            Expr::Binary(both) if matches!(both.op, BinOp::Or(_)) => {
                self.condition(&both.left, false, true);
                self.condition(&both.right, becomes_true, true);
            }
            _ => {
                let at = condition.span().byte_range();
                if becomes_true {
                    self.add(at.clone(), "becomes true", ["(", " || (", "))"]);
                }
                if becomes_false {
                    self.add(at.clone(), "becomes false", ["(!", " && (", "))"]);
                }
                match condition {
                    Expr::Unary(not) if matches!(not.op, UnOp::Not(_)) => self.visit_expr(&not.expr),
                    Expr::Binary(both) => {
                        self.operator(both, false);
                        visit::visit_expr_binary(self, both);
                    }
                    other => self.visit_expr(other),
                }
            }
        }
    }

    /// Adds the mutants of a comparison or a calculation.
    fn operator(&mut self, both: &syn::ExprBinary, is_negated: bool) {
        let (is_comparison, other) = match both.op {
            BinOp::Lt(_) => (true, "<="),
            BinOp::Le(_) => (true, "<"),
            BinOp::Gt(_) => (true, ">="),
            BinOp::Ge(_) => (true, ">"),
            BinOp::Eq(_) | BinOp::Ne(_) => (true, ""),
            BinOp::Add(_) => (false, "-"),
            BinOp::Sub(_) => (false, "+"),
            BinOp::Mul(_) => (false, "/"),
            BinOp::Div(_) => (false, "*"),
            _ => return,
        };
        let at = both.span().byte_range();
        if !other.is_empty() {
            let (left, right) = (self.original(&both.left), self.original(&both.right));
            let what = format!("{} becomes {other}", self.original(&both.op));
            self.add(at.clone(), &what, ["(if ", &format!(" {{ {left} {other} {right} }} else {{ "), " })"]);
        }
        if is_comparison && is_negated {
            self.add(at, "is negated", ["(", " != (", "))"]);
        }
    }

    fn function(&mut self, signature: &Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        // Skip constant functions, which cannot call the check, and `fmt`, whose output no judge reads.
        if signature.constness.is_some() || signature.ident == "fmt" {
            return;
        }
        self.path.push(signature.ident.to_string());
        let start = block.span().byte_range().start + 1;
        for value in values(&signature.output) {
            let what = if value.is_empty() { "does nothing".to_owned() } else { format!("returns {value}") };
            self.add(start..start, &what, [" if ", &format!(" {{ return {value}; }}"), ""]);
        }
        visit(self);
        self.path.pop();
    }
}

/// Maximum number of characters of a place in a mutant's name.
const SHOWN: usize = 70;

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            _ => return,
        };
        if !is_conditional(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.path.push(name.unwrap_or_default());
        visit::visit_item_impl(self, item);
        self.path.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.path.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.path.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_conditional(&item.attrs) {
            self.function(&item.sig, &item.block, |finder| visit::visit_impl_item_fn(finder, item));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block, |finder| visit::visit_trait_item_fn(finder, item));
        }
    }

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement {
            let called = match expression {
                Expr::Try(tried) => &*tried.expr,
                other => other,
            };
            let assigns = |op: &BinOp| matches!(op, BinOp::AddAssign(_) | BinOp::SubAssign(_));
            let is_deleted = match called {
                Expr::MethodCall(call) => call.attrs.is_empty(),
                Expr::Call(call) => call.attrs.is_empty(),
                Expr::Assign(assign) => assign.attrs.is_empty(),
                Expr::Await(waited) => waited.attrs.is_empty(),
                Expr::Binary(both) => assigns(&both.op),
                _ => false,
            };
            if is_deleted {
                self.add(statement.span().byte_range(), "is deleted", ["if !", " { ", " }"]);
            }
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        self.condition(&expression.cond, true, true);
        self.visit_block(&expression.then_branch);
        if let Some((_, otherwise)) = &expression.else_branch {
            self.visit_expr(otherwise);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if is_conditional(&arm.attrs) {
            return;
        }
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, true, true);
        }
        self.visit_expr(&arm.body);
    }

    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        if matches!(expression.op, BinOp::And(_) | BinOp::Or(_)) {
            let whole = Expr::Binary(expression.clone());
            return self.condition(&whole, false, false);
        }
        if let (BinOp::BitAndAssign(_), Expr::Unary(inverted)) = (&expression.op, &*expression.right) {
            // `!` inverts bits here. The compiler would report a mutant of it outside of the mutant.
            return self.visit_expr(&inverted.expr);
        }
        self.operator(expression, true);
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        if matches!(expression.op, UnOp::Not(_)) {
            self.add(expression.span().byte_range(), "is negated", ["(", " != (", "))"]);
        }
        visit::visit_expr_unary(self, expression);
    }

    // Skip patterns and types: a pattern or an array length must be constant and cannot call a function.
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_type(&mut self, _: &'ast Type) {}
}

/// Returns true if an attribute excludes the item from some builds.
fn is_conditional(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg"))
}

/// Returns cheap values of a function's return type.
fn values(output: &ReturnType) -> &'static [&'static str] {
    let ReturnType::Type(_, of) = output else { return &[""] };
    let Type::Path(path) = &**of else { return &[] };
    let Some(last) = path.path.segments.last() else { return &[] };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "Option" => &["None"],
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => &["0", "1"],
        "Duration" => &["std::time::Duration::ZERO"],
        "Vec" => &["Vec::new()"],
        "Result" => match &last.arguments {
            PathArguments::AngleBracketed(of) => match of.args.first() {
                Some(GenericArgument::Type(Type::Tuple(unit))) if unit.elems.is_empty() => &["Ok(())"],
                Some(GenericArgument::Type(Type::Path(path))) if path.path.is_ident("bool") => {
                    &["Ok(true)", "Ok(false)"]
                }
                _ => &[],
            },
            _ => &[],
        },
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(text: &str) -> (Vec<String>, String) {
        let mutants = mutants(text).unwrap();
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let text = with_mutants(text, &numbered, "m({})").text;
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (mutants.into_iter().map(|mutant| mutant.name).collect(), text)
    }

    #[test]
    fn every_place_has_its_mutants() {
        let text = "impl A { fn f(&self) -> bool { if a < 1 && let Some(b) = c { self.g(); } !self.h } }";
        let (names, text) = mutated(text);
        let expected = [
            "A::f: returns true",
            "A::f: returns false",
            "A::f: `a < 1` becomes true",
            "A::f: `a < 1` < becomes <=",
            "A::f: `self.g();` is deleted",
            "A::f: `!self.h` is negated",
        ];
        assert_eq!(names, expected);
        let expected = "impl A { fn f(&self) -> bool { if m(0) { return true; } if m(1) { return false; } \
            if (m(2) || ((if m(3) { a <= 1 } else { a < 1 }))) && let Some(b) = c { if !m(4) { self.g(); } } (m(5) != (!self.h)) } }";
        assert_eq!(text, expected);
    }

    #[test]
    fn tests_and_constants_have_no_mutants() {
        let text = "const A: u8 = 1 + 2; const fn f() -> u8 { 1 + 2 } #[cfg(test)] mod tests { fn g() {} }";
        assert_eq!(mutated(text), (Vec::new(), text.to_owned()));
        assert_eq!(test_modules("mod a; #[cfg(test)] mod b;").unwrap(), ["b"]);
    }

    #[test]
    fn inverted_bits_have_no_mutants() {
        assert_eq!(mutated("impl A { fn f(&mut self) { self.bits &= !B; } }").0, ["A::f: does nothing"]);
    }

    #[test]
    fn same_changes_have_different_names() {
        let (names, _) = mutated("fn f() { x.g(); x.g(); }");
        assert_eq!(names, ["f: does nothing", "f: `x.g();` is deleted", "f: `x.g();` is deleted (no. 2)"]);
    }

    #[test]
    fn error_belongs_to_innermost_mutant() {
        let text = "fn f() -> bool { a < b || c }";
        let mutants = mutants(text).unwrap();
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let mutated = with_mutants(text, &numbered, "m({})");
        let at = |part: &str| mutated.mutant_at(mutated.text.find(part).unwrap());
        assert_eq!(at("return false"), Some(1));
        assert_eq!(mutants[at("a <= b").unwrap()].name, "f: `a < b` < becomes <=");
        assert_eq!(mutants[at("&& (c").unwrap()].name, "f: `c` becomes false");
        assert_eq!(mutated.mutant_at(0), None);
    }
}

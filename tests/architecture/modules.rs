//! Modules of a crate, each with the imports in the file.
//!
//! The files are found as the compiler finds them: from the root file of a target, along `mod` declarations. An import is a
//! `use` declaration, or a path in the code that begins with `crate`, `self` or `super`.
//!
//! - An import of a re-exported name leads to the file that defines it, not to the file that re-exports it.
//! - Code under `#[cfg(test)]` is left out, also files that are modules only there.
//! - Inline modules belong to the file around them.
//!
//! Source: the Rust reference, "Paths", "Use declarations" and "Module source filenames".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tokens::{Token, tokens};

/// Limit of re-exports that an import is followed through.
const REEXPORTS_MAX: usize = 8;

/// Path of a module below the crate root; empty for the root.
pub(crate) type ModulePath = Vec<String>;

/// Path in the source, with the inline modules around it.
#[derive(Debug, Clone)]
struct Import {
    inline: Vec<String>,
    path: Vec<String>,
}

/// File of a crate.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    imports: Vec<Import>,
    /// Names that `use` declarations of this file bind.
    aliases: BTreeMap<String, Import>,
}

/// Files of one target.
#[derive(Debug, Default)]
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// Reads the target whose root file is `root`.
    ///
    /// # Panics
    /// If a file of it does not exist.
    pub(crate) fn read(root: &Path) -> Modules {
        let mut modules = Modules::default();
        let directory = root.parent().expect("a file is in a directory");
        modules.add(Vec::new(), root, directory);
        modules
    }

    /// Reads a file and the submodules; `directory` contains the submodules.
    fn add(&mut self, path: ModulePath, file: &Path, directory: &Path) {
        let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut reader = Reader { tokens: tokens(&source), ..Reader::default() };
        reader.read();
        for (name, other) in reader.children {
            let beside = || directory.join(format!("{name}.rs"));
            let child = other.map_or_else(beside, |other| file.with_file_name(other));
            let child = if child.exists() { child } else { directory.join(&name).join("mod.rs") };
            self.add([path.clone(), vec![name.clone()]].concat(), &child, &directory.join(&name));
        }
        let module = Module { file: file.to_owned(), imports: reader.imports, aliases: reader.aliases };
        self.0.insert(path, module);
    }

    /// Returns the files by module path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&ModulePath, &Path)> {
        self.0.iter().map(|(path, module)| (path, module.file.as_path()))
    }

    /// Returns pairs of modules: the first imports something that the second defines.
    pub(crate) fn imports(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let all = self.0.iter().flat_map(|(path, module)| module.imports.iter().map(move |one| (path, one)));
        all.filter_map(|(path, one)| Some((path.clone(), self.target(path, one, 0)?))).collect()
    }

    /// Returns the module whose file defines what a path names; `None` if the path leads out of this crate.
    fn target(&self, module: &ModulePath, import: &Import, depth: usize) -> Option<ModulePath> {
        let mut current = [module.clone(), import.inline.clone()].concat();
        let mut rest = import.path.as_slice();
        let mut begun = false;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => current.clear(),
                "self" => {}
                "super" => {
                    current.pop()?;
                }
                _ => break,
            }
            begun = true;
            rest = after;
        }
        // Inline modules belong to the file around them.
        while !self.0.contains_key(&current) {
            current.pop()?;
        }
        for (index, name) in rest.iter().enumerate() {
            let below = [current.clone(), vec![name.clone()]].concat();
            if self.0.contains_key(&below) {
                current = below;
            } else if let Some(alias) =
                self.0[&current].aliases.get(name).filter(|_| depth < REEXPORTS_MAX && (begun || index > 0))
            {
                let path = [alias.path.clone(), rest[index + 1..].to_vec()].concat();
                let further = Import { inline: alias.inline.clone(), path };
                return Some(self.target(&current, &further, depth + 1).unwrap_or(current));
            } else if index == 0 && !begun {
                return None;
            } else {
                break;
            }
        }
        Some(current)
    }
}

/// Reader for the tokens in one file.
#[derive(Debug, Default)]
struct Reader {
    tokens: Vec<Token>,
    position: usize,
    inline: Vec<String>,
    imports: Vec<Import>,
    aliases: BTreeMap<String, Import>,
    /// Submodules in separate files, and the file if an attribute names it.
    children: Vec<(String, Option<String>)>,
}

impl Reader {
    fn read(&mut self) {
        // Depths of braces at which inline modules end.
        let (mut depth, mut ends) = (0, Vec::new());
        let (mut is_test, mut file) = (false, None);
        while let Some(token) = self.next() {
            match &token {
                Token::Attribute(text) if text.starts_with("cfg(test") => is_test = true,
                Token::Attribute(text) => file = text.strip_prefix("path=").map(str::to_owned).or(file),
                Token::Name(word) if word == "use" => {
                    let skip = is_test;
                    self.read_use(Vec::new(), skip);
                    (is_test, file) = (false, None);
                }
                Token::Name(word) if word == "mod" && matches!(self.peek(), Some(Token::Name(_))) => {
                    let Some(Token::Name(name)) = self.next() else { return };
                    match self.next() {
                        Some(Token::Sign(';')) if !is_test => self.children.push((name, file.take())),
                        Some(Token::Sign('{')) if is_test => self.skip_block(),
                        Some(Token::Sign('{')) => {
                            self.inline.push(name);
                            ends.push(depth);
                            depth += 1;
                        }
                        _ => {}
                    }
                    (is_test, file) = (false, None);
                }
                Token::Name(word) if ["crate", "super", "self"].contains(&word.as_str()) => {
                    self.position -= 1;
                    let path = self.read_path();
                    if path.len() > 1 {
                        self.imports.push(Import { inline: self.inline.clone(), path });
                    }
                }
                Token::Sign('{') if is_test => {
                    self.skip_block();
                    is_test = false;
                }
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => {
                    depth -= 1;
                    if ends.last() == Some(&depth) {
                        ends.pop();
                        self.inline.pop();
                    }
                }
                Token::Sign(';') => (is_test, file) = (false, None),
                _ => {}
            }
        }
    }

    /// Reads the tree in a `use` declaration behind `prefix`, up to the end.
    fn read_use(&mut self, prefix: Vec<String>, skip: bool) {
        let path = [prefix, self.read_path()].concat();
        let mut name = path.last().cloned();
        match self.next() {
            Some(Token::Sign('{')) => {
                while !matches!(self.peek(), Some(Token::Sign('}')) | None) {
                    self.read_use(path.clone(), skip);
                    if matches!(self.peek(), Some(Token::Sign(','))) {
                        self.position += 1;
                    }
                }
                self.position += 1;
                return;
            }
            Some(Token::Name(word)) if word == "as" => {
                name = match self.next() {
                    Some(Token::Name(alias)) => Some(alias),
                    _ => None,
                };
            }
            Some(Token::Sign('*')) => name = None,
            _ => self.position -= 1,
        }
        if skip {
            return;
        }
        let mut path = path;
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
            name = path.last().cloned();
        }
        let import = Import { inline: self.inline.clone(), path };
        if let Some(name) = name {
            self.aliases.insert(name, import.clone());
        }
        self.imports.push(import);
    }

    /// Reads names that are separated by `::`.
    fn read_path(&mut self) -> Vec<String> {
        let mut path = Vec::new();
        loop {
            match self.peek() {
                Some(Token::Colons) => self.position += 1,
                Some(Token::Name(name))
                    if path.is_empty() || self.tokens[self.position - 1] == Token::Colons =>
                {
                    path.push(name.clone());
                    self.position += 1;
                }
                _ => return path,
            }
        }
    }

    fn skip_block(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Sign('{')) => depth += 1,
                Some(Token::Sign('}')) => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.position += 1;
        token
    }
}

//! The Rust files of the tree, read and parsed.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// One file.
pub(super) struct Source {
    /// From the top of the checkout.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) syntax: syn::File,
}

impl Source {
    pub(super) fn parse(path: &str, text: &str) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            text: text.to_owned(),
            syntax: syn::parse_file(text).with_context(|| path.to_owned())?,
        })
    }
}

const PACKAGES: [&str; 5] = ["relay", "relay-common", "relay-ebpf", "tests", "xtask"];

/// Reads every Rust file of every package under `root`.
pub(super) fn read(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for package in PACKAGES {
        read_directory(root, &root.join(package), &mut sources)?;
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn read_directory(root: &Path, directory: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type()?.is_dir() {
            let built = name == "target" || name.as_encoded_bytes().starts_with(b".");
            if !built {
                read_directory(root, &path, sources)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(root).unwrap_or(&path);
            sources.push(Source::parse(&path.to_string_lossy(), &text)?);
        }
    }
    Ok(())
}

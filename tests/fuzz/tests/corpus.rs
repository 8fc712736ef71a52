//! The inputs that are kept, given to their targets: seeds, and what once was a finding.

use std::{fs, io, path::PathBuf};

use relay_fuzz::{TARGETS, find};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn replay(name: &str) -> io::Result<()> {
    let target = find(name).ok_or(io::ErrorKind::NotFound)?;
    let mut inputs = 0;
    for input in fs::read_dir(corpus().join(name))? {
        let path = input?.path();
        println!("{}", path.display());
        (target.run)(&fs::read(path)?);
        inputs += 1;
    }
    assert!(inputs > 0, "nothing to replay");
    Ok(())
}

macro_rules! replayed {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() -> io::Result<()> {
            replay(stringify!($name))
        })*

        #[test]
        fn every_target_has_a_corpus_that_is_replayed() {
            let mut names = Vec::from_iter(fs::read_dir(corpus()).unwrap().map(|entry| {
                entry.unwrap().file_name().into_string().unwrap()
            }));
            names.sort();
            assert_eq!(names, [$(stringify!($name)),*]);
            assert_eq!(names, TARGETS.map(|target| target.name));
        }
    };
}

replayed! {
    address,
    config,
    http_connect,
    proxy,
    rinetd,
    socks5,
}

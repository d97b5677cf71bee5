//! A folder as one file: the path, the length and the bytes of each file in it, compressed. Tests of `server` use it
//! too.
#![allow(dead_code, reason = "not every test makes folders")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

pub(crate) fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

pub(crate) fn pack(folder: &Path, to: &Path) {
    let mut paths = Vec::new();
    files(folder, &mut paths);
    paths.sort();
    let mut packed = GzEncoder::new(File::create(to).unwrap(), Compression::best());
    for path in paths {
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
        let bytes = fs::read(&path).unwrap();
        for part in [name.as_bytes(), &bytes] {
            packed.write_all(&(part.len() as u64).to_be_bytes()).unwrap();
            packed.write_all(part).unwrap();
        }
    }
    packed.finish().unwrap();
}

pub(crate) fn unpack(from: &Path, folder: &Path) {
    let mut packed = GzDecoder::new(File::open(from).unwrap());
    let mut part = || -> Option<Vec<u8>> {
        let mut length = [0; 8];
        packed.read_exact(&mut length).ok()?;
        let mut part = vec![0; u64::from_be_bytes(length) as usize];
        packed.read_exact(&mut part).unwrap();
        Some(part)
    };
    while let Some(name) = part() {
        let path = folder.join(String::from_utf8(name).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, part().unwrap()).unwrap();
    }
}

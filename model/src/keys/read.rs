//! Reads keys of a database.

use super::Leaf;
use super::database::{
    ALL_DOCS, CHANGES, CONTENTS, COUNTS, DOCS, DatabaseKeys, INDEX_ROWS, INDEXED, IndexPlace, LOCAL, PARTS, PURGES,
    REFERENCES, REPLACED, REPLACED_DOCS, REVISIONS, TRASH, VIEW_ERRORS, VIEW_GROUPS, VIEW_ROWS, VIEWS,
};
use super::elements::{misplaced, read_content, read_leaf, read_seq};
use crate::attachments::{ContentId, StoreId};
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::rows::row::Reader;

impl DatabaseKeys {
    /// A reader of a key's elements after the database's prefix and the subspace. Fails if the subspace differs.
    fn inside<'k>(&self, key: &'k [u8], subspace: u64) -> Result<Reader<'k>> {
        let mut reader = Reader::new(key.strip_prefix(self.prefix().as_ref()).ok_or_else(|| misplaced(key))?);
        if reader.int()? == subspace { Ok(reader) } else { Err(misplaced(key)) }
    }

    /// The document and the leaf in a key of `revisions`.
    pub(crate) fn read_revision(&self, key: &[u8]) -> Result<(String, Leaf)> {
        self.read_id_and_leaf(key, REVISIONS)
    }

    fn read_id_and_leaf(&self, key: &[u8], subspace: u64) -> Result<(String, Leaf)> {
        let mut reader = self.inside(key, subspace)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok((id, leaf))
    }

    /// The document in a key of `revisions`. The leaf in the key may be damaged.
    pub(crate) fn read_revision_id(&self, key: &[u8]) -> Result<String> {
        Ok(self.inside(key, REVISIONS)?.str()?.into_owned())
    }

    /// The leaf in a key of `revisions`; the document's prefix is `document_len` bytes long.
    pub(crate) fn read_leaf(key: &[u8], document_len: usize) -> Result<Leaf> {
        let mut reader = Reader::new(key.get(document_len..).ok_or_else(|| misplaced(key))?);
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok(leaf)
    }

    /// The document and the leaf in a key of `docs`, and the length of the key up to the leaf's end.
    pub(crate) fn read_doc(&self, key: &[u8]) -> Result<(String, Leaf, usize)> {
        let mut reader = self.inside(key, DOCS)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        Ok((id, leaf, key.len() - reader.rest().len()))
    }

    /// The leaf in a key of `docs`, and the length of the key up to the leaf's end; the document's prefix is
    /// `document_len` bytes long.
    pub(crate) fn read_doc_leaf(key: &[u8], document_len: usize) -> Result<(Leaf, usize)> {
        let mut reader = Reader::new(key.get(document_len..).ok_or_else(|| misplaced(key))?);
        let leaf = read_leaf(&mut reader)?;
        Ok((leaf, key.len() - reader.rest().len()))
    }

    /// The document and the leaf in the key of a replaced revision.
    pub(crate) fn read_replaced(&self, key: &[u8]) -> Result<(String, Leaf)> {
        self.read_id_and_leaf(key, REPLACED)
    }

    /// The document and the leaf in a key of the body of a replaced revision.
    pub(crate) fn read_replaced_doc(&self, key: &[u8]) -> Result<(String, Leaf)> {
        let mut reader = self.inside(key, REPLACED_DOCS)?;
        Ok((reader.str()?.into_owned(), read_leaf(&mut reader)?))
    }

    /// The time, the document and the leaf in the key of a replaced revision's time.
    pub(crate) fn read_replaced_since(&self, key: &[u8]) -> Result<(u64, String, Leaf)> {
        let mut reader = self.inside(key, REPLACED)?;
        let since_ms = reader.int()?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok((since_ms, id, leaf))
    }

    /// The sequence in a key of `changes`.
    pub(crate) fn read_change(&self, key: &[u8]) -> Result<Seq> {
        let mut reader = self.inside(key, CHANGES)?;
        let seq = read_seq(&mut reader)?;
        reader.end()?;
        Ok(seq)
    }

    /// The sequence in the key of a row that counts edits.
    pub(crate) fn read_count(&self, key: &[u8]) -> Result<Seq> {
        let mut reader = self.inside(key, COUNTS)?;
        let seq = read_seq(&mut reader)?;
        reader.end()?;
        Ok(seq)
    }

    /// The document in a key of `all_docs`.
    pub(crate) fn read_all_doc(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, ALL_DOCS)?;
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }

    /// The content in a key of `contents`.
    pub(crate) fn read_content(&self, key: &[u8]) -> Result<ContentId> {
        let mut reader = self.inside(key, CONTENTS)?;
        let content = read_content(&mut reader)?;
        reader.end()?;
        Ok(content)
    }

    /// The upload's store and the part's number in a key of `parts`.
    pub(crate) fn read_part(&self, key: &[u8]) -> Result<(StoreId, u64)> {
        let mut reader = self.inside(key, PARTS)?;
        let store = StoreId::try_from(reader.bytes()?.as_ref()).map_err(|_| misplaced(key))?;
        let part = reader.int()?;
        reader.end()?;
        Ok((store, part))
    }

    /// The content, the document and the leaf in a key of `references`.
    pub(crate) fn read_reference(&self, key: &[u8]) -> Result<(ContentId, String, Leaf)> {
        let mut reader = self.inside(key, REFERENCES)?;
        let content = read_content(&mut reader)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok((content, id, leaf))
    }

    /// The index in the key of an index row, and the row's key and document; `None` for the row with the progress of
    /// the build.
    pub(crate) fn read_index_row(&self, key: &[u8]) -> Result<(u64, Option<IndexPlace>)> {
        let mut reader = self.inside(key, INDEX_ROWS)?;
        let index = reader.int()?;
        if reader.rest().is_empty() {
            return Ok((index, None));
        }
        let (key, id) = (reader.bytes()?.into_owned(), reader.str()?.into_owned());
        reader.end()?;
        Ok((index, Some((key, id))))
    }

    /// The document in the key of an id row.
    pub(crate) fn read_indexed(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, INDEXED)?;
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }

    /// The sequence in the key of a purge.
    pub(crate) fn read_purge(&self, key: &[u8]) -> Result<u64> {
        let mut reader = self.inside(key, PURGES)?;
        let seq = reader.int()?;
        reader.end()?;
        Ok(seq)
    }

    /// The UUID in the key of a purge's UUID.
    pub(crate) fn read_purge_of(&self, key: &[u8]) -> Result<[u8; 16]> {
        let mut reader = self.inside(key, PURGES)?;
        let uuid = reader.bytes()?.as_ref().try_into().map_err(|_| misplaced(key))?;
        reader.end()?;
        Ok(uuid)
    }

    /// The signature in the key of a view group.
    pub(crate) fn read_view_group(&self, key: &[u8]) -> Result<[u8; 16]> {
        let mut reader = self.inside(key, VIEWS)?;
        if reader.int()? != VIEW_GROUPS {
            return Err(misplaced(key));
        }
        let signature = reader.bytes()?.as_ref().try_into().map_err(|_| misplaced(key))?;
        reader.end()?;
        Ok(signature)
    }

    /// The view group in the key of one of its rows.
    pub(crate) fn read_group_of_row(&self, key: &[u8]) -> Result<u64> {
        let mut reader = self.inside(key, VIEWS)?;
        if reader.int()? != VIEW_ROWS {
            return Err(misplaced(key));
        }
        reader.int()
    }

    /// The view in the key of a row, a node or a part of a view group, and the length of the key up to there.
    pub(crate) fn read_view_of_row(&self, key: &[u8]) -> Result<(u64, usize)> {
        let mut reader = self.inside(key, VIEWS)?;
        let (_rows, _group, _kind) = (reader.int()?, reader.int()?, reader.int()?);
        let view = reader.int()?;
        Ok((view, key.len() - reader.rest().len()))
    }

    /// The document in the key of an id row of a view group; `None` for a further part.
    pub(crate) fn read_view_ids(&self, key: &[u8]) -> Result<Option<String>> {
        let mut reader = self.inside(key, VIEWS)?;
        let (_rows, _group, _kind) = (reader.int()?, reader.int()?, reader.int()?);
        let id = reader.str()?.into_owned();
        Ok(reader.rest().is_empty().then_some(id))
    }

    /// The document in the key of an error of a view group.
    pub(crate) fn read_view_error(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, VIEWS)?;
        let (_rows, _group, kind) = (reader.int()?, reader.int()?, reader.int()?);
        let id = reader.str()?.into_owned();
        if kind == VIEW_ERRORS { Ok(id) } else { Err(misplaced(key)) }
    }

    /// The document in the key of a row that leaves it out of a view.
    pub(crate) fn read_left_out(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, VIEWS)?;
        let (_rows, _group, _kind, _view) = (reader.int()?, reader.int()?, reader.int()?, reader.int()?);
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }

    /// The id in the key of a local document, and the part's number if it is a part of the body.
    pub(crate) fn read_local(&self, key: &[u8]) -> Result<(String, Option<u64>)> {
        let mut reader = self.inside(key, LOCAL)?;
        let id = reader.str()?.into_owned();
        let part = if reader.rest().is_empty() { None } else { Some(reader.int()?) };
        reader.end()?;
        Ok((id, part))
    }

    /// The document in a key of the trash.
    pub(crate) fn read_trash(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, TRASH)?;
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }
}

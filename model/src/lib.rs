//! CouchDB's document model as key layouts over a transactional key-value store.

// The codec: encodes values as bytes, without a store.
mod bigint;
mod body;
mod etf;
mod revid;
mod tuple;

// The operations.
mod adoption;
mod all_docs;
mod ancestors;
mod attachments;
mod batch;
mod blob;
mod branch;
mod catalog;
mod catalog_row;
mod change_row;
mod changes;
mod check;
mod complete;
mod configuration;
mod conflicts;
mod consumer;
mod count;
mod document;
mod documents;
mod edit;
mod edit_counts;
mod environment;
pub mod error;
mod events;
mod feed;
mod find;
mod id_set;
mod identity;
mod indexes;
mod info;
mod instance;
mod keep_replaced;
mod keys;
mod layer;
pub mod limits;
mod local;
mod open_revs;
pub mod parallel;
mod partition_info;
mod parts;
mod policy;
mod purge;
mod quota;
mod read;
mod reading;
mod relocate;
mod replaced;
mod revs_diff;
mod row;
mod seq;
mod settings;
mod stats;
mod stream;
mod txids;
mod typed;
mod unguarded;
mod validation;
mod views;
mod watcher;
mod write;

pub use body::{
    BodyError, BodyFormat, BodyLimits, CorruptDocument, RevisionMetadata, StoredBody, decode_body, decode_rows,
    row_cost,
};
pub use etf::{AttachmentDigest, RevisionTerm, Term, erlang_term};
pub use json::{
    Elements, Event, Events, FromSerdeError, JsonArray, JsonError, JsonErrorKind, JsonKind, JsonRef, JsonStr, JsonText,
    JsonWriter, MAX_INPUT_BYTES, Members, ParseOptions, Patch, PatchError, SplitObject, TooDeepForSerde,
};
pub use revid::{InvalidRev, MAX_REV_HASH_BYTES, RevHash, RevId, hex};

pub use adoption::Adopted;
pub use all_docs::{AllDocs, AllDocsEntry, AllDocsRequest, AllDocsRow};
pub use attachments::{
    Attachment, AttachmentEdit, AttachmentReader, AttachmentSource, Content, ContentAhead, ContentStep, Encoding,
    Follows, Upload, UploadAs, check_attachment_name,
};
pub use catalog::{CreateOptions, NameRange};
pub use changes::{Change, ChangesBatch, ChangesRequest, Since, Style};
pub use check::{CheckProgress, CheckReport, Problem, Repair, RepairReport};
pub use configuration::{MAX_SETTING_BYTES, MAX_SETTING_NAME_BYTES, MAX_SETTINGS, Setting, check_setting};
pub use conflicts::{Conflicted, Conflicts};
pub use consumer::Consumer;
pub use document::{BulkGet, Document, GetOptions, OpenRev, OpenRevs, RevInfo, RevStatus};
pub use documents::Documents;
pub use edit::{Edit, EditResult, RevHistory, WriteMode};
pub use edit_counts::TimeBin;
pub use environment::{Environment, SystemEnvironment};
pub use error::{Error, ErrorKind, NotFound, Refused, Result};
pub use events::{DatabaseEvent, DatabaseEventKind, DatabaseEvents, DatabaseWatcher};
pub use find::{Find, IndexBuilder, choose_index};
pub use id_set::IdSet;
pub use identity::IDENTITY_BYTES;
pub use indexes::{
    BUILD_JOBS, BatchAhead, BuildProgress, IndexBuild, IndexInfo, IndexPage, IndexRequest, IndexRow, MAX_INDEXES,
    ParallelDocuments, ParallelRead, ReadAhead,
};
pub use info::{DatabaseInfo, Sizes};
pub use keep_replaced::{KeepReplaced, parse_time};
pub use keys::{Leaf, is_instance_key};
pub use layer::{Layer, LayerOptions};
pub use local::{LocalDocs, LocalDocument, LocalRow};
pub use partition_info::PartitionInfo;
pub use parts::Parts;
pub use policy::ConflictPolicy;
pub use purge::{DEFAULT_PURGED_INFOS_LIMIT, Purge, PurgeInfo};
pub use relocate::{
    RelocateOptions, RelocatePhase, RelocateProgress, RelocateReport, VerifyReport, abandon_relocation, relocate,
};
pub use replaced::FORGET_JOBS;
pub use revs_diff::RevsDiff;
pub use seq::{NumberedSeq, Seq};
pub use settings::default_security;
pub use stream::Feed;
pub use typed::{Typed, Versioned};
pub use validation::{MAX_VALIDATING, MAX_VALIDATING_BYTES, OPTIONS, Question, VALIDATE, Validator, Verdict, Writing};
pub use views::{
    Emit, Emitted, FunctionError, Grouping, LeftOut, MAX_KEY as MAX_VIEW_KEY, Mapped, Reduce, ReduceRow, Reduced,
    ReducedPage, ReducedRow, Reduction, Resume as ViewResume, RustView, View, ViewError, ViewFunctions, ViewGroup,
    ViewGroupInfo, ViewGroupStats, ViewOptions, ViewPage, ViewProgress, ViewRequest, ViewRow, ViewUpdate,
};
pub use watcher::Watcher;
pub use write::{Begun, Edits, REWRITE_JOBS, Rewriting, Stemming, Token};

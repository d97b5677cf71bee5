//! CouchDB's document model as key layouts over a transactional key-value store.

mod admin;
mod attachments;
mod documents;
pub mod error;
mod feed;
mod indexes;
mod keys;
mod layer;
pub mod limits;
pub mod parallel;
mod read;
mod replaced;
mod rows;
mod views;
mod write;

pub use json::{
    Elements, Event, Events, FromSerdeError, JsonArray, JsonError, JsonErrorKind, JsonKind, JsonRef, JsonStr, JsonText,
    JsonWriter, MAX_INPUT_BYTES, Members, ParseOptions, Patch, PatchError, SplitObject, TooDeepForSerde,
};
pub use rows::body::{
    BodyError, BodyFormat, BodyLimits, CorruptDocument, RevisionMetadata, StoredBody, decode_body, decode_rows,
    row_cost,
};
pub use rows::etf::{AttachmentDigest, RevisionTerm, Term, erlang_term};
pub use rows::revid::{InvalidRev, MAX_REV_HASH_BYTES, RevHash, RevId, hex};

pub use admin::adoption::Adopted;
pub use admin::catalog::{CreateOptions, NameRange};
pub use admin::check::{CheckProgress, CheckReport, Problem, Repair, RepairReport};
pub use admin::configuration::{MAX_SETTING_BYTES, MAX_SETTING_NAME_BYTES, MAX_SETTINGS, Setting, check_setting};
pub use admin::edit_counts::TimeBin;
pub use admin::environment::{Environment, SystemEnvironment};
pub use admin::identity::IDENTITY_BYTES;
pub use admin::info::{DatabaseInfo, Sizes};
pub use admin::partition_info::PartitionInfo;
pub use admin::purge::{DEFAULT_PURGED_INFOS_LIMIT, Purge, PurgeInfo};
pub use admin::relocate::{
    RelocateOptions, RelocatePhase, RelocateProgress, RelocateReport, VerifyReport, abandon_relocation, relocate,
};
pub use attachments::{
    Attachment, AttachmentEdit, AttachmentReader, AttachmentSource, Content, ContentAhead, ContentStep, Encoding,
    Follows, Upload, UploadAs, check_attachment_name,
};
pub use documents::Documents;
pub use error::{Error, ErrorKind, NotFound, Refused, Result};
pub use feed::change::{Change, ChangesBatch, ChangesRequest, Since, Style};
pub use feed::consumer::Consumer;
pub use feed::events::{DatabaseEvent, DatabaseEventKind, DatabaseEvents, DatabaseWatcher};
pub use feed::seq::{NumberedSeq, Seq};
pub use feed::watcher::Watcher;
pub use indexes::{
    BUILD_JOBS, BatchAhead, BuildProgress, IndexBuild, IndexInfo, IndexPage, IndexRequest, IndexRow, MAX_INDEXES,
    ParallelDocuments, ParallelRead, ReadAhead,
};
pub use keys::{Leaf, is_instance_key};
pub use layer::{Layer, LayerOptions};
pub use read::all_docs::{AllDocs, AllDocsEntry, AllDocsRequest, AllDocsRow};
pub use read::conflicts::{Conflicted, Conflicts};
pub use read::document::{BulkGet, Document, GetOptions, OpenRev, OpenRevs, RevInfo, RevStatus};
pub use read::find::{Find, IndexBuilder, choose_index};
pub use read::local::{LocalDocs, LocalDocument, LocalRow};
pub use read::parts::Parts;
pub use read::revs_diff::RevsDiff;
pub use read::stream::Feed;
pub use read::typed::{Typed, Versioned};
pub use replaced::FORGET_JOBS;
pub use replaced::keep_replaced::{KeepReplaced, MOST_MILLISECONDS, parse_time};
pub use rows::id_set::IdSet;
pub use rows::passed_row::{Due, Passed};
pub use rows::settings::default_security;
pub use views::{
    Emit, Emitted, FunctionError, Grouping, LeftOut, MAX_KEY as MAX_VIEW_KEY, MapAhead, Mapped, MappedBatch, Reduce,
    ReduceRow, Reduced, ReducedPage, ReducedRow, Reduction, Resume as ViewResume, RustView, Trial as ViewTrial, View,
    ViewError, ViewFunctions, ViewGroup, ViewGroupInfo, ViewGroupStats, ViewOptions, ViewPage, ViewProgress,
    ViewRequest, ViewRow, ViewUpdate,
};
pub use write::edit::{Edit, EditResult, RevHistory, WriteMode};
pub use write::policy::ConflictPolicy;
pub use write::validation::{
    MAX_VALIDATING, MAX_VALIDATING_BYTES, OPTIONS, Question, VALIDATE, Validator, Verdict, Writing,
};
pub use write::{
    Begun, COLLECTED_AT_ONCE, Collection, Condemned, Condemning, Discarded, Edits, Emptied, InTrash, REWRITE_JOBS,
    Rewriting, Stemming, Token, TrashPage,
};

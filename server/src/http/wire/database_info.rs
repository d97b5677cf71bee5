//! The information about a database, as JSON.

use model::{ConflictPolicy, DatabaseInfo, JsonWriter, KeepReplaced};

/// Writes the members that describe a database into an open object.
pub(crate) fn write_info(json: &mut JsonWriter<'_>, name: &str, info: &DatabaseInfo) {
    json.name("instance_start_time").display(info.created_ms / 1000);
    json.name("db_name").str(name);
    json.name("purge_seq").display(info.purge_seq);
    json.name("update_seq").display(info.update_seq);
    json.name("sizes").begin_object();
    json.name("file").u64(info.sizes.file);
    json.name("external").u64(info.sizes.external);
    json.name("active").u64(info.sizes.active);
    if let Some(quota) = info.quota {
        json.name("quota").u64(quota);
    }
    json.end_object();
    json.name("props").begin_object();
    if info.conflicts == ConflictPolicy::LastWriteWins {
        json.name("conflicts").str("last-write-wins");
    }
    if let Some(keep) = info.keep_replaced {
        write_keep(json.name("keep_replaced"), Some(keep));
    }
    if info.partitioned {
        json.name("partitioned").bool(true);
    }
    json.end_object();
    json.name("doc_del_count").u64(info.doc_del_count);
    json.name("doc_count").u64(info.doc_count);
    json.name("disk_format_version").u64(1);
    json.name("compact_running").bool(info.is_compacting);
    json.name("cluster").begin_object();
    for name in ["q", "n", "w", "r"] {
        json.name(name).u64(1);
    }
    json.end_object();
}

/// Writes how long bodies of replaced revisions are kept: 0, a number of revisions, or a time.
pub(crate) fn write_keep(json: &mut JsonWriter<'_>, keep: Option<KeepReplaced>) {
    match keep {
        None => json.u64(0),
        Some(KeepReplaced::Revisions(number)) => json.u64(u64::from(number)),
        Some(keep) => json.display(keep),
    };
}

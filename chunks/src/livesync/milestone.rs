//! The milestone: a local document in which LiveSync's clients leave who they are and how they are set up.
//!
//! ```json
//! {"_id":"_local/obsydian_livesync_milestone","type":"milestoneinfo","created":1795365506967,"locked":false,
//!  "accepted_nodes":["pxa93m6dyn"],
//!  "node_info":{"pxa93m6dyn":{"device_name":"phone","app_version":"1.7.7","plugin_version":"0.25.70",
//!    "progress":"00000660e01bc2016700000003","last_connected":1795365506967}},
//!  "tweak_values":{"PREFERRED":{"encrypt":true},"pxa93m6dyn":{"encrypt":true}}}
//! ```
//!
//! A client writes `progress` when it connects, before it replicates: it is the `update_seq` that the database had
//! then. So it tells where the database was when the device was last here. It does **not** prove that the device has
//! read up to there: the replication may have failed, and one that goes on for days moves nothing here. A client that
//! then refuses to replicate, since its settings or its form of chunks do not match, has left its progress all the same.
//!
//! Source: `ensureRemoteIsCompatible`, `TweakValuesTemplate`, `TweakValuesDefault` and `selectorOnDemandPull` in
//! livesync-commonlib.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::store::Body;

/// The document.
pub(crate) const MILESTONE: &str = "_local/obsydian_livesync_milestone";
/// The settings that the devices agreed on, beside those of each device.
const PREFERRED: &str = "PREFERRED";
/// Bytes of the largest milestone that is read. A device takes some two thousand.
const MOST_BYTES: usize = 1 << 20;
/// Number of devices in the largest.
const MOST_DEVICES: usize = 1_000;
/// Bytes of the longest id of a device.
const LONGEST_ID: usize = 200;
/// A time, which differs without any harm.
const IS_A_TIME: &str = "tweakModified";

/// The setting of a device that pulls no chunks with `type` "leaf": it asks for those that it needs. CouchDB's selector
/// `{"type": {"$ne": "leaf"}}` leaves out their tombstones too, since these have no `type`.
const ON_DEMAND: &str = "readChunksOnline";

/// Settings that clients compare before they replicate: with another value they ask, or stop.
const MUST_MATCH: [&str; 18] = [
    "minimumChunkSize",
    "longLineThreshold",
    "encrypt",
    "usePathObfuscation",
    "enableCompression",
    "useEden",
    "customChunkSize",
    "useDynamicIterationCount",
    "hashAlg",
    "enableChunkSplitterV2",
    "maxChunksInEden",
    "maxTotalLengthInEden",
    "maxAgeInEden",
    "usePluginSyncV2",
    "handleFilenameCaseSensitive",
    "useSegmenter",
    "E2EEAlgorithm",
    "chunkSplitterVersion",
];

/// What the milestone says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Milestone {
    /// Whether only accepted devices may replicate.
    pub locked: bool,
    /// The devices that were ever here, sorted by id: the accepted ones, those that left who they are, and those that
    /// left settings or which form of chunks they know. Plugins before 0.25.36 did not leave who they are.
    pub devices: Vec<Device>,
    /// Settings that are not the same on all devices, sorted by name.
    pub differences: Vec<Difference>,
    /// Whether the devices agreed to encrypt; `None` if they did not agree on anything yet.
    pub encrypted: Option<bool>,
    /// Whether they agreed to obfuscate paths, or any of them does so.
    pub obfuscated: bool,
    /// Whether there is no form of chunks that all devices know. Some of them then refuse to replicate.
    pub incompatible: bool,
    /// What [`Device::fetches_on_demand`] will be of a device that joins, and takes the settings that the others agreed on.
    pub joins_on_demand: Option<bool>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its id, which may be empty.
    pub id: String,
    /// Its name, if it left one.
    pub name: Option<String>,
    /// Its version of the plugin.
    pub plugin_version: Option<String>,
    /// Whether it is among the accepted devices.
    pub accepted: bool,
    /// When it last connected, in milliseconds since 1970; to the minute.
    pub last_connected_ms: Option<u64>,
    /// The sequence that the database had when it last connected, as the device noted it; `None` if it is not text. It
    /// may be anything: a device that could not ask has noted `undefined`.
    pub progress: Option<String>,
    /// Whether it fetches chunks only when it needs them. Then it does not learn that a chunk was deleted, and keeps its
    /// copy. So LiveSync does by default; `None` if the device has not said it.
    pub fetches_on_demand: Option<bool>,
}

/// A setting that is not the same on all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name in LiveSync's settings.
    pub setting: String,
    /// Its value by the id of the device, and under `PREFERRED` the value that they agreed on.
    pub values: BTreeMap<String, Value>,
    /// Whether clients stop or ask because of it.
    pub must_match: bool,
}

impl Device {
    /// Its name and its id. Many devices have one name: that of the vault.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} ({})", self.id),
            None => format!("({})", self.id),
        }
    }
}

impl Milestone {
    /// Reads the document.
    ///
    /// # Errors
    /// What is wrong with it, as a predicate of the milestone.
    pub(crate) fn read(body: &Body) -> Result<Milestone, String> {
        if body.get("type").and_then(Value::as_str) != Some("milestoneinfo") {
            return Err("is damaged: its type is not \"milestoneinfo\"".into());
        }
        if serde_json::to_vec(body).map_or(true, |text| text.len() > MOST_BYTES) {
            return Err("is damaged: it has more than a megabyte".into());
        }
        let accepted = body.get("accepted_nodes").and_then(Value::as_array);
        let accepted = accepted.and_then(|all| all.iter().map(Value::as_str).collect::<Option<BTreeSet<&str>>>());
        let accepted = accepted.ok_or("is damaged: \"accepted_nodes\" is not a list of ids")?;
        let members = |name: &str| match body.get(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(_) => Err(format!("is damaged: \"{name}\" is not an object")),
        };
        let (info, tweaks) = (members("node_info")?, members("tweak_values")?);
        let with_settings = tweaks.into_iter().flat_map(Map::keys).filter(|id| *id != PREFERRED);
        let forms = members("node_chunk_info")?;
        let named = [info, forms].into_iter().flatten().flat_map(Map::keys).chain(with_settings);
        let known: BTreeSet<&str> = named.map(String::as_str).chain(accepted.iter().copied()).collect();
        if known.len() > MOST_DEVICES || known.iter().any(|id| id.len() > LONGEST_ID) {
            return Err(format!("is damaged: it has more than {MOST_DEVICES} devices, or one with a very long id"));
        }
        let device = |id: &&str| {
            let info = info.and_then(|all| all.get(*id));
            let member = |name: &str| info.and_then(|info| info.get(name));
            let text = |name: &str| member(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            let settings = tweaks.and_then(|all| all.get(*id));
            Device {
                id: (*id).to_owned(),
                name: text("device_name").or_else(|| text("vault_name")).map(str::to_owned),
                plugin_version: text("plugin_version").map(str::to_owned),
                accepted: accepted.contains(*id),
                last_connected_ms: member("last_connected").and_then(Value::as_u64).filter(|&time| time > 0),
                progress: text("progress").map(str::to_owned),
                fetches_on_demand: settings.and_then(|own| own.get(ON_DEMAND)).and_then(Value::as_bool),
            }
        };
        let agreed = tweaks.and_then(|all| all.get(PREFERRED));
        let is_set = |name: &str| agreed.and_then(|values| values.get(name)) == Some(&Value::Bool(true));
        Ok(Milestone {
            locked: body.get("locked") == Some(&Value::Bool(true)),
            devices: known.iter().map(device).collect(),
            differences: tweaks.map(differences).unwrap_or_default(),
            encrypted: agreed.is_some().then(|| is_set("encrypt")),
            obfuscated: tweaks.into_iter().flat_map(Map::values).any(obfuscates),
            incompatible: forms.is_some_and(are_apart),
            joins_on_demand: agreed.and_then(|values| values.get(ON_DEMAND)).and_then(Value::as_bool),
        })
    }
}

/// Whether these are the settings of a device that obfuscates paths. One that does not encrypt has no passphrase to do it
/// by; the plugin leaves the setting as it was.
fn obfuscates(settings: &Value) -> bool {
    let is = |name: &str, value| settings.get(name) == Some(&Value::Bool(value));
    is("usePathObfuscation", true) && !is("encrypt", false)
}

/// Whether the forms of chunks that devices know, each from `min` to `max`, have none in common.
fn are_apart(forms: &Map<String, Value>) -> bool {
    let all = |name: &'static str| forms.values().filter_map(move |form| form.get(name)?.as_f64());
    all("min").any(|min| all("max").any(|max| max < min))
}

/// The value that clients take for a setting of which a device says nothing, or on which they did not agree; `None` for
/// those that they do not compare then. (`TweakValuesDefault`.)
fn default_of(setting: &str) -> Option<Value> {
    match setting {
        "usePluginSyncV2" => Some(false.into()),
        "E2EEAlgorithm" => Some("v2".into()),
        "chunkSplitterVersion" => Some("v3-rabin-karp".into()),
        _ => None,
    }
}

/// Settings with several values. A device that does not say anything of a setting has LiveSync's default, or agrees if
/// there is none.
fn differences(tweaks: &Map<String, Value>) -> Vec<Difference> {
    let mut by_setting: BTreeMap<&String, BTreeMap<String, Value>> = BTreeMap::new();
    for (device, settings) in tweaks {
        for (setting, value) in settings.as_object().into_iter().flatten() {
            by_setting.entry(setting).or_default().insert(device.clone(), value.clone());
        }
    }
    for (setting, values) in &mut by_setting {
        let Some(default) = default_of(setting) else { continue };
        for device in tweaks.keys() {
            values.entry(device.clone()).or_insert_with(|| default.clone());
        }
    }
    let differs = |values: &BTreeMap<String, Value>| values.values().any(|value| Some(value) != values.values().next());
    let several = by_setting.into_iter().filter(|(setting, values)| *setting != IS_A_TIME && differs(values));
    several
        .map(|(setting, values)| Difference {
            setting: setting.clone(),
            values,
            must_match: MUST_MATCH.contains(&setting.as_str()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Milestone, String> {
        Milestone::read(body.as_object().unwrap())
    }

    #[test]
    fn devices_and_their_settings_are_read() {
        let milestone = read(json!({
            "type": "milestoneinfo", "locked": true, "accepted_nodes": ["a", "gone"],
            "node_info": {
                "a": {"device_name": "phone", "plugin_version": "0.25.70", "progress": "12-x", "last_connected": 7},
                "": {"device_name": "", "vault_name": "notes", "progress": "", "last_connected": 0},
            },
            "tweak_values": {
                "PREFERRED": {"encrypt": true, "usePathObfuscation": true, "customChunkSize": 0, "tweakModified": 1},
                "a": {"encrypt": true, "customChunkSize": 50, "batch_size": 25, "readChunksOnline": false,
                      "tweakModified": 2},
                "": {"batch_size": 50},
            },
        }))
        .unwrap();
        let [nameless, a, gone] = &milestone.devices[..] else { panic!("{:?}", milestone.devices) };
        assert_eq!((nameless.id.as_str(), nameless.name.as_deref(), nameless.accepted), ("", Some("notes"), false));
        assert_eq!((nameless.progress.as_deref(), nameless.last_connected_ms), (None, None));
        assert_eq!((a.name.as_deref(), a.accepted, a.last_connected_ms), (Some("phone"), true, Some(7)));
        assert_eq!((a.progress.as_deref(), a.fetches_on_demand), (Some("12-x"), Some(false)));
        assert_eq!(nameless.fetches_on_demand, None, "it has not said so");
        assert_eq!(gone, &Device { id: "gone".into(), accepted: true, ..Device::default() });
        assert_eq!((milestone.locked, milestone.encrypted, milestone.obfuscated), (true, Some(true), true));
        assert_eq!((milestone.incompatible, milestone.joins_on_demand), (false, None));
        let named: Vec<(&str, bool)> =
            milestone.differences.iter().map(|found| (found.setting.as_str(), found.must_match)).collect();
        assert_eq!(named, [("batch_size", false), ("customChunkSize", true)]);
        assert_eq!(
            milestone.differences[1].values,
            BTreeMap::from([("PREFERRED".into(), json!(0)), ("a".into(), json!(50))])
        );
    }

    #[test]
    fn a_setting_that_is_not_said_has_the_default_of_livesync() {
        for (of_a, agreed, differing) in [
            (json!({}), json!({"E2EEAlgorithm": "v2", "chunkSplitterVersion": "v3-rabin-karp"}), vec![]),
            (json!({"usePluginSyncV2": false}), json!({}), vec![]),
            (json!({"usePluginSyncV2": true}), json!({}), vec!["usePluginSyncV2"]),
            (json!({}), json!({"E2EEAlgorithm": ""}), vec!["E2EEAlgorithm"]),
            (json!({"chunkSplitterVersion": "v2"}), json!({}), vec!["chunkSplitterVersion"]),
            // Others are not compared where they are not said.
            (json!({"customChunkSize": 100}), json!({}), vec![]),
        ] {
            let tweaks = json!({"PREFERRED": agreed, "a": of_a});
            let milestone = read(json!({"type": "milestoneinfo", "accepted_nodes": [], "tweak_values": tweaks}));
            let found = milestone.unwrap().differences;
            assert!(found.iter().all(|found| found.must_match && found.values.len() == 2), "{found:?}");
            assert_eq!(found.iter().map(|found| found.setting.as_str()).collect::<Vec<_>>(), differing, "{tweaks}");
        }
    }

    #[test]
    fn devices_that_left_settings_or_their_form_of_chunks_only_are_devices() {
        let milestone = read(json!({
            "type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"b": {"device_name": "notes"}},
            "node_chunk_info": {"c": {"min": 0, "max": 2_400, "current": 2}}, "tweak_values": {"PREFERRED": {}, "d": {}},
        }))
        .unwrap();
        let titles: Vec<String> = milestone.devices.iter().map(Device::title).collect();
        assert_eq!(titles, ["(a)", "notes (b)", "(c)", "(d)"]);
        assert!(milestone.devices.iter().all(|device| device.progress.is_none()));
    }

    #[test]
    fn one_device_that_obfuscates_paths_is_enough() {
        for (by, is_one) in [
            (json!({"a": {"usePathObfuscation": true}}), true),
            (json!({"a": {"usePathObfuscation": true, "encrypt": false}}), false),
            (json!({"a": {}, "b": 1}), false),
        ] {
            let milestone = read(json!({"type": "milestoneinfo", "accepted_nodes": [], "tweak_values": by})).unwrap();
            assert_eq!(milestone.obfuscated, is_one);
        }
    }

    #[test]
    fn devices_that_know_no_form_of_chunks_in_common_are_incompatible() {
        let form = |min: i64, max: i64| json!({"min": min, "max": max, "current": 2});
        for (forms, incompatible) in [
            (json!({}), false),
            (json!({"a": form(0, 2_400), "b": form(2_400, 9_000)}), false),
            (json!({"a": form(0, 2_400), "b": form(2_401, 9_000), "c": form(0, 9_000)}), true),
            (json!({"a": {"min": 0}, "b": {"max": "2"}, "c": 7}), false),
        ] {
            let body = json!({"type": "milestoneinfo", "accepted_nodes": [], "node_chunk_info": forms});
            assert_eq!(read(body).unwrap().incompatible, incompatible, "{forms}");
        }
    }

    #[test]
    fn what_is_no_milestone_is_refused() {
        for (body, wanted) in [
            (json!({}), "milestoneinfo"),
            (json!({"type": "leaf", "accepted_nodes": []}), "milestoneinfo"),
            (json!({"type": "milestoneinfo"}), "accepted_nodes"),
            (json!({"type": "milestoneinfo", "accepted_nodes": ["a", 7]}), "accepted_nodes"),
            (json!({"type": "milestoneinfo", "accepted_nodes": [], "node_info": []}), "node_info"),
            (json!({"type": "milestoneinfo", "accepted_nodes": [], "tweak_values": 1}), "tweak_values"),
            (json!({"type": "milestoneinfo", "accepted_nodes": [], "node_chunk_info": 1}), "node_chunk_info"),
            (json!({"type": "milestoneinfo", "accepted_nodes": ["a".repeat(201)]}), "very long id"),
            (
                json!({"type": "milestoneinfo", "accepted_nodes": (0..1_001).map(|n| n.to_string()).collect::<Vec<_>>()}),
                "more than 1000 devices",
            ),
            (json!({"type": "milestoneinfo", "accepted_nodes": [], "more": "x".repeat(1 << 20)}), "megabyte"),
        ] {
            let refused = read(body.clone()).unwrap_err();
            assert!(refused.contains(wanted), "{body}: {refused}");
        }
        let oldest = read(json!({"type": "milestoneinfo", "accepted_nodes": ["a"]})).unwrap();
        assert_eq!((oldest.devices.len(), oldest.encrypted, oldest.locked), (1, None, false));
    }
}

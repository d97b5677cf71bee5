//! The configuration of the servers of a store.

use bytes::Bytes;
use kv_api::{Database, RangeRequest, Read, TransactionExt};
use model::{MAX_SETTING_BYTES, MAX_SETTING_NAME_BYTES, MAX_SETTINGS};

use super::feed::soon;
use crate::stage::*;

pub(crate) async fn settings_are_shared_watched_and_removed(stage: Stage) {
    let (one, other) = (stage.layer().await, stage.layer().await);
    let rows = RangeRequest::keys(Bytes::from_static(&[0x15, 9]), Bytes::from_static(&[0x15, 9, 0xff]));
    let rows = async || stage.engine().begin().unwrap().get_all(rows.clone(), Read::Snapshot).await.unwrap();
    let (settings, changed) = other.configuration().await.unwrap();
    assert_eq!((settings, rows().await.len()), (Vec::new(), 0), "unset, it costs nothing");
    assert_eq!(one.configure("admins", "anna", Some("first")).await.unwrap(), None);
    soon(changed).await.unwrap();
    let list = async || {
        let (settings, changed) = other.configuration().await.unwrap();
        let text = |setting: model::Setting| format!("{}/{}={}", setting.section, setting.name, setting.value);
        (settings.into_iter().map(text).collect::<Vec<_>>(), changed)
    };
    let (settings, changed) = list().await;
    assert_eq!(settings, ["admins/anna=first"]);
    assert_eq!(one.configure("admins", "anna", Some("")).await.unwrap().as_deref(), Some("first"));
    soon(changed).await.unwrap();
    one.configure("admins\0b", "a/b", Some("x\0y")).await.unwrap();
    one.configure("a", "z", Some("ä")).await.unwrap();
    let (settings, changed) = list().await;
    assert_eq!(settings, ["a/z=ä", "admins/anna=", "admins\0b/a/b=x\0y"]);
    assert_eq!(one.configure("admins", "none", None).await.unwrap(), None, "writes nothing");
    assert_eq!(one.configure("admins", "anna", None).await.unwrap().as_deref(), Some(""));
    soon(changed).await.unwrap();
    assert_eq!(list().await.0, ["a/z=ä", "admins\0b/a/b=x\0y"]);
}

pub(crate) async fn one_setting_is_the_first_of_its_section(stage: Stage) {
    let (one, other) = (stage.layer().await, stage.layer().await);
    one.configure("admins\0b", "x", Some("x")).await.unwrap();
    one.configure("b", "x", Some("x")).await.unwrap();
    let names: Vec<String> = (0..8).map(|number| format!("admin{number}")).collect();
    let at_once = names.iter().zip([&one, &other].into_iter().cycle());
    let at_once = at_once.map(|(name, layer)| layer.configure_first("admins", name, name));
    let were_first = futures_util::future::try_join_all(at_once).await.unwrap();
    assert_eq!(were_first.iter().filter(|was_first| **was_first).count(), 1, "{were_first:?}");
    let first = &names[were_first.iter().position(|was_first| *was_first).unwrap()];
    assert!(!one.configure_first("admins", first, "again").await.unwrap());
    let (settings, _) = other.configuration().await.unwrap();
    let admins: Vec<_> = settings.iter().filter(|setting| setting.section == "admins").collect();
    assert_eq!((admins.len(), &admins[0].name, &admins[0].value), (1, first, first));
    other.configure("admins", first, None).await.unwrap();
    assert!(one.configure_first("admins", "later", "x").await.unwrap());
    assert_eq!(one.configure_first("", "a", "").await.unwrap_err().status(), 400);
}

pub(crate) async fn bad_settings_are_refused(stage: Stage) {
    let layer = stage.layer().await;
    let long = "x".repeat(MAX_SETTING_NAME_BYTES + 1);
    let much = "x".repeat(MAX_SETTING_BYTES + 1);
    for (section, name, value) in
        [("", "a", ""), ("a", "", ""), (&*long, "a", ""), ("a", &*long, ""), ("a", "a", &*much)]
    {
        let refused = layer.configure(section, name, Some(value)).await.unwrap_err();
        assert_eq!((refused.status(), refused.error()), (400, "bad_request"));
    }
    for number in 0..MAX_SETTINGS {
        layer.configure("a", &number.to_string(), Some("")).await.unwrap();
    }
    assert_eq!(layer.configure("a", "more", Some("")).await.unwrap_err().status(), 400);
    layer.configure("a", "0", Some("changed")).await.unwrap();
    layer.configure("a", "0", None).await.unwrap();
    layer.configure("a", "more", Some("")).await.unwrap();
    assert_eq!(layer.configuration().await.unwrap().0.len(), MAX_SETTINGS);
}

//! The manifests: what the API's types make of them, and the settings of relay that they carry.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Pod, Service},
};
use relay_tests::relay::Launch;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Every object of every manifest, and the file that it is in.
pub(crate) fn objects() -> Result<Vec<(PathBuf, Value)>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes");
    let mut objects = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let text = fs::read_to_string(&path)?;
        let read = serde_saphyr::from_multiple(&text);
        let read: Vec<Value> = read.with_context(|| path.display().to_string())?;
        objects.extend(read.into_iter().map(|object| (path.clone(), object)));
    }
    ensure!(objects.len() > 4, "too few objects: {objects:?}");
    Ok(objects)
}

/// The type takes in what it knows and fills in what it cannot do without, so what comes out is the same only when nothing
/// is unknown, missing or of another kind.
fn is_a<T: DeserializeOwned + Serialize>(object: &Value) -> Result<()> {
    let understood = serde_json::to_value(serde_json::from_value::<T>(object.clone())?)?;
    ensure!(
        understood == *object,
        "the API reads\n{understood:#}\nout of\n{object:#}"
    );
    Ok(())
}

#[test]
fn the_manifests_are_what_the_api_takes() -> Result<()> {
    for (path, object) in objects()? {
        let checked = match object["kind"].as_str() {
            Some("ConfigMap") => is_a::<ConfigMap>(&object),
            Some("DaemonSet") => is_a::<DaemonSet>(&object),
            Some("Deployment") => is_a::<Deployment>(&object),
            Some("Pod") => is_a::<Pod>(&object),
            Some("Service") => is_a::<Service>(&object),
            kind => bail!("{}: no check for {kind:?}", path.display()),
        };
        checked.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[test]
fn what_is_unknown_or_missing_is_found() -> Result<()> {
    let service = |port: Value| serde_json::json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [port]}});
    let port = serde_json::json!({"port": 1});
    is_a::<Service>(&service(serde_json::json!({"port": 1}))).unwrap_err();
    let named = |port: &Value| {
        let mut service = service(port.clone());
        service["metadata"] = serde_json::json!({"name": "a"});
        service
    };
    is_a::<Service>(&named(&port))?;
    for wrong in [
        serde_json::json!({"name": "without a port"}),
        serde_json::json!({"port": 1, "nodeport": 2}),
        serde_json::json!({"port": "one"}),
    ] {
        ensure!(is_a::<Service>(&named(&wrong)).is_err(), "{wrong}");
    }
    Ok(())
}

#[test]
fn the_settings_in_the_manifests_are_in_order() -> Result<()> {
    let mut checked = 0;
    for (path, object) in objects()? {
        let Some(text) = object["data"]["relay.toml"].as_str() else {
            continue;
        };
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        fs::write(&file, text)?;
        let file = file.display().to_string();
        let finished = Launch::new(["check", "--config", &file]).run()?;
        ensure!(
            finished.status.success(),
            "{}: {finished:?}",
            path.display()
        );
        checked += 1;
    }
    ensure!(checked == 3);
    Ok(())
}

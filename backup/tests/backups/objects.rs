//! Places in an object store, behind a server that speaks S3's protocol.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use backup::{Place, Protection, Repository, ShipOptions, Shipper, place_with};
use engine_lsm::{LsmDatabase, LsmOptions, LsmStore};
use kv_api::{DatabaseExt, Transaction};
use model::SystemEnvironment;

struct S3 {
    address: SocketAddr,
    _folder: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl S3 {
    async fn start(bucket: &str) -> S3 {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(bucket)).unwrap();
        let mut service = s3s::service::S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
        service.set_auth(s3s::auth::SimpleAuth::from_single("key", "secret"));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let io = hyper_util::rt::TokioIo::new(socket);
                    // A closed connection is not a failure of the test.
                    drop(connection.serve_connection(io, service).await);
                });
            }
        });
        S3 { address, _folder: folder, task }
    }

    fn place(&self, name: &str) -> backup::Result<Arc<dyn Place>> {
        let endpoint = format!("http://{}", self.address);
        let variables =
            [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_ENDPOINT", &endpoint)];
        place_with(name, variables.map(|(name, value)| (name.to_owned(), value.to_owned())))
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_file_of_an_object_store_is_created_once() {
    let s3 = S3::start("bucket").await;
    let place = s3.place("s3://bucket/some/where/").unwrap();
    assert_eq!(place.list("a").await.unwrap(), []);
    assert_eq!(place.read("a/one").await.unwrap_err().kind(), ErrorKind::NotFound);
    place.create("a/one", "first".into()).await.unwrap();
    assert_eq!(place.create("a/one", "other".into()).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    place.create("a/b/two", "second".into()).await.unwrap();
    place.create("c", "third".into()).await.unwrap();
    assert_eq!(place.read("a/one").await.unwrap(), "first");
    assert_eq!(place.read_part("a/one", 1, 3).await.unwrap(), "irs");
    assert_eq!(place.read_part("a/one", 3, 3).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let listed: Vec<_> = place.list("a").await.unwrap().into_iter().map(|file| (file.path, file.bytes)).collect();
    assert_eq!(listed, [("a/b/two".to_owned(), 6), ("a/one".to_owned(), 5)]);
    place.delete("a/one").await.unwrap();
    place.delete("a/one").await.unwrap();
    assert_eq!(place.list("a").await.unwrap().len(), 1);
    for wrong in ["s3://", "s3://key:secret@bucket", "s3://bucket?x=1", "ftp://bucket"] {
        assert!(s3.place(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_store_is_shipped_to_an_object_store_and_restored() {
    let s3 = S3::start("bucket").await;
    let root = tempfile::tempdir().unwrap();
    let protection = Protection::Passphrase(b"key".to_vec());
    let place = s3.place("s3://bucket/notes").unwrap();
    let repository = Repository::open_or_create(place.clone(), &protection, Arc::new(SystemEnvironment)).await.unwrap();
    let database = LsmDatabase::open(root.path().join("store"), LsmOptions::new()).unwrap();
    let write = async |value: &'static [u8]| {
        let written = database.run(|transaction, _| async move {
            transaction.set(&b"key"[..], value);
            Ok::<_, kv_api::Error>(())
        });
        written.await.unwrap();
    };
    let ship = |name| Shipper::new(repository.clone(), Arc::new(database.clone()), name, ShipOptions::default());
    write(b"one").await;
    let shipper = ship("store");
    shipper.ship_log().await.unwrap();
    assert!(shipper.ship_tables().await.unwrap());
    write(b"two").await;
    shipper.ship_log().await.unwrap();
    let other = ship("other").ship_log().await.unwrap_err().to_string();
    assert!(other.contains("the log of the store store"), "{other}");
    let another = place.read("ship/log/000000000001").await.unwrap();
    place.create("ship/log/000000000003", another).await.unwrap();
    write(b"three").await;
    assert!(shipper.ship_log().await.unwrap_err().to_string().contains("another server ships"), "it is fenced");
    place.delete("ship/log/000000000003").await.unwrap();
    let verified = repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!((verified.problems, verified.bases), (Vec::new(), 1));
    let copy = root.path().join("copy");
    repository.restore_shipped::<LsmStore>(&copy, None, &mut |_| {}).await.unwrap();
    let restored = LsmDatabase::open(&copy, LsmOptions::new().copy()).unwrap();
    let found = restored.run(|transaction, _| async move { transaction.get(b"key", kv_api::Read::Snapshot).await });
    assert_eq!(found.await.unwrap().as_deref(), Some(&b"two"[..]));
}

//! Release images: containerd, podman and docker load what `release/image` writes, without a registry.
//!
//! The programs in the images are small files, because only the archive format matters here. `release/check`
//! loads the images from a real release into containerd and podman.

use rig::Containerd;
use rig::machine::Machine;
use rig::parts::{parts, text};
use testkit::{host, workspace};

const NAME: &str = "weft.test/weft:0.1.0";
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
const PODMAN: &str = "/usr/bin/podman";

/// Writes `/run/image-amd64.tar`, `/run/image-arm64.tar` and `/run/image.tar`, with both.
fn write_images(machine: &Machine) {
    let mut directories = Vec::new();
    for architecture in ARCHITECTURES {
        machine.write(format!("/run/programs/{architecture}/weft"), format!("for {architecture}"));
        directories.push(format!("{architecture}=/run/programs/{architecture}"));
    }
    let program = workspace().join("release/image");
    let image = machine.command("env").args(["SOURCE_DATE_EPOCH=1700000000", text(&program)]);
    let image = image.args(["--name", NAME, "--version", "0.1.0", "--revision", "0"]);
    image.args(["--output", "/run/image"]).args(&directories).finish().success();
}

/// Returns the paths of the images.
fn images() -> Vec<String> {
    ["-amd64", "-arm64", ""].map(|suffix| format!("/run/image{suffix}.tar")).to_vec()
}

#[test]
fn release_image_is_imported_by_containerd() {
    let Some(containerd) = Containerd::new(host!()) else { return };
    write_images(&containerd.machine());
    for image in images() {
        containerd.import_all(&image);
        assert_eq!(containerd.image_names("weft.test/weft"), [NAME], "{image}");
        containerd.remove_image(NAME);
    }
}

#[test]
fn release_image_is_loaded_by_podman() {
    if !std::path::Path::new(PODMAN).exists() {
        testkit::record_skip(&testkit::test_name(), "podman is not installed");
        return;
    }
    let machine = Machine::new(host!(), "node");
    write_images(&machine);
    // The machine's own configuration is not visible, and without a policy podman loads no image.
    machine.write("/etc/containers/policy.json", r#"{ "default": [{ "type": "insecureAcceptAnything" }] }"#);
    let podman = |words: &[&str]| {
        let store = ["--root", "/run/store", "--runroot", "/run/store-state", "--tmpdir", "/run/store-tmp"];
        let podman = machine.command(PODMAN).args(store).args(["--storage-driver", "vfs"]);
        let podman = podman.env("HOME", "/run/home");
        podman
            .args(["--events-backend", "none", "--cgroup-manager", "cgroupfs"])
            .args(words)
            .finish()
            .success()
    };
    for image in images() {
        podman(&["load", "--input", &image]);
        let inspected = podman(&["image", "inspect", NAME]).json();
        assert_eq!(inspected[0]["Config"]["Entrypoint"][0], "/weft", "{image}: {inspected}");
        podman(&["rmi", NAME]);
    }
}

#[test]
fn release_image_is_loaded_by_docker() {
    let Some(parts) = parts("containerd") else { return };
    let [daemon, client] = ["docker/usr/sbin/dockerd", "docker/usr/bin/docker"].map(|name| parts.join(name));
    if !daemon.exists() {
        testkit::record_skip(&testkit::test_name(), "target/containerd has no docker: run its prepare again");
        return;
    }
    let machine = Machine::new(host!(), "node");
    write_images(&machine);
    let path = format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", text(&parts.join("root/usr/bin")));
    let of_daemon = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"];
    let files =
        ["--data-root=/run/docker", "--exec-root=/run/docker-state", "--host=unix:///run/docker.sock"];
    machine.write("/run/docker.json", "{}");
    let line = ["env", &path, text(&daemon), "--config-file=/run/docker.json"].into_iter();
    let line = line.chain(of_daemon).chain(files);
    machine.start("dockerd", line.chain(["--pidfile=/run/docker.pid"]));
    let docker = |words: &[&str]| {
        machine.command(text(&client)).args(["--host", "unix:///run/docker.sock"]).args(words).finish()
    };
    machine.wait("dockerd", "answers", || (docker(&["version"]).code == Some(0)).then_some(()));
    // Docker of this release loads no index of several architectures.
    for architecture in ARCHITECTURES {
        docker(&["load", "--input", &format!("/run/image-{architecture}.tar")]).success();
        let inspected = docker(&["image", "inspect", NAME]).success().json();
        assert_eq!(inspected[0]["Architecture"], architecture, "{inspected}");
        docker(&["image", "rm", NAME]).success();
    }
}

//! Guides: `weft lint` accepts every complete object in them.

use std::fs;
use std::process::Command;

use testkit::workspace;

/// Returns the YAML blocks of a page that are complete objects.
fn objects(page: &str) -> Vec<String> {
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with("apiVersion: ")).map(str::to_owned).collect()
}

#[test]
fn guides_contain_only_objects_that_lint_accepts() {
    let scratch = std::env::temp_dir().join(format!("weft-guides-{}", std::process::id()));
    // Plugins of other projects, of which the guides say where they come from.
    let plugins = scratch.join("plugins");
    fs::create_dir_all(&plugins).expect("a directory");
    for plugin in ["sriov", "bond"] {
        fs::write(plugins.join(plugin), "").expect("write a plugin");
    }
    let mut count = 0;
    for entry in fs::read_dir(workspace().join("docs/guides")).expect("the guides").flatten() {
        let page = fs::read_to_string(entry.path()).expect("a page is text");
        let objects = objects(&page);
        count += objects.len();
        if objects.is_empty() {
            continue;
        }
        let file = scratch.join("objects.yaml");
        fs::write(&file, objects.join("---\n")).expect("write the objects");
        let output = Command::new(testkit::binary("weft"))
            .arg("lint")
            .arg("--plugin-dir")
            .arg(&plugins)
            .arg(&file)
            .output()
            .expect("run weft");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("warning"), "{}: {text}", entry.path().display());
    }
    fs::remove_dir_all(&scratch).expect("remove the directory");
    assert!(count > 10, "only {count} objects were found");
}

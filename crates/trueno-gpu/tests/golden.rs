//! The PTX text of every kernel in every shape matches the committed file. `UPDATE_GOLDEN=1` rewrites the files.

use std::path::Path;

#[test]
fn every_kernel_is_spelt_as_committed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, kernel) in trueno_gpu::kernels::shapes() {
        let path = folder.join(format!("{name}.ptx"));
        let ptx = kernel.emit_ptx();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &ptx).expect("the golden file can be written");
        }
        let golden = std::fs::read_to_string(&path).expect("the golden file exists; UPDATE_GOLDEN=1 makes it");
        assert!(ptx == golden, "{name}: the text changed; UPDATE_GOLDEN=1 accepts it");
    }
}

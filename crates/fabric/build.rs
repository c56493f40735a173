//! Generates the private libfabric bindings from the installed headers.
//!
//! Most functions of libfabric's API are `static inline`. bindgen writes C wrappers for these functions, and
//! `cc` compiles the wrappers. `src/libfabric/wrapper.h` holds everything whose layout differs between 1.x
//! and 2.x.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/libfabric/wrapper.h");

    // Only the headers are used: the library is loaded at run time.
    let library = pkg_config::Config::new()
        .atleast_version("1.17")
        .cargo_metadata(false)
        .probe("libfabric")
        .expect("libfabric 1.17 or newer with headers is needed (Debian: libfabric-dev)");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let wrappers = out.join("static_wrappers");
    let includes = library.include_paths.iter();

    bindgen::Builder::default()
        .header("src/libfabric/wrapper.h")
        .clang_args(includes.clone().map(|path| format!("-I{}", path.display())))
        .allowlist_function("fi_(getinfo|freeinfo|dupinfo|fabric)")
        .allowlist_function("fi_(domain|cq_open|av_open|endpoint|ep_bind|enable|close|control)")
        .allowlist_function("fi_(cq_read|cq_readerr|cq_strerror|trywait|getname)")
        .allowlist_function("fi_(av_insert|av_remove|mr_reg|mr_desc|mr_key)")
        .allowlist_function("fi_(recv|send|read|writemsg)")
        .allowlist_function("plasmon_.*")
        .allowlist_type("fi_context2|fi_cq_data_entry|fi_cq_err_entry|fi_cq_attr|fi_av_attr")
        .allowlist_var("PLASMON_.*|FI_(MAJOR|MINOR)_VERSION")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .generate()
        .expect("bindgen understands libfabric's headers (is libclang installed?)")
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");

    cc::Build::new()
        .file(wrappers.with_extension("c"))
        .include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .includes(includes)
        .warnings(false)
        .compile("plasmon_fabric_wrappers");
}

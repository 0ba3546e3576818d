//! The files that may have unsafe code. All others forbid it or have none.

/// Files and folders of the product, and what their unsafe code is for.
const PRODUCT: [(&str, &str); 15] = [
    ("crates/trueno-zram-core/src/lz4/encode/table.rs", "the hash table of the LZ4 encoder"),
    ("crates/trueno-zram-core/src/lz4/encode/compare_x86.rs", "vector compares"),
    ("crates/trueno-zram-core/src/lz4/decode/", "the unchecked inner loop of the LZ4 decoder"),
    ("crates/trueno-zram-core/src/gpu/", "calls of the CUDA driver, page-locked memory and launches"),
    ("crates/trueno-zram-io/src/files/standard_streams.rs", "a function that runs before `main`"),
    ("crates/trueno-zram-io/src/input/", "leases, borrowed mappings, memory of other processes"),
    ("crates/trueno-zram-io/src/mapping/", "mappings and SIGBUS"),
    ("crates/trueno-zram-io/src/output/write_errors.rs", "the errors of close"),
    ("crates/trueno-zram-store/src/mapping.rs", "shared memory as atomic words"),
    ("crates/trueno-zram-connections/src/unix_socket.rs", "options of sockets"),
    ("crates/trueno-zram-serve/src/ublk/ring.rs", "io_uring"),
    ("crates/trueno-zram-serve/src/vhost_user/exit_event.rs", "descriptors that a library leaks"),
    ("crates/trueno-zram-serve/src/vhost_user/memory.rs", "memory of guests"),
    ("crates/trueno-zram-restore/src/uffd.rs", "userfaultfd"),
    ("crates/trueno-zram-cli/src/process/registers.rs", "ptrace"),
];

/// Crates that are not part of the product, and tests, which stand between the product and the system.
const OUTSIDE: [&str; 5] = ["crates/trueno-bench/", "crates/trueno-test-", "/tests/", "/tests.rs", "fuzz/"];

/// Returns `true` if this file may have unsafe code.
pub(crate) fn may_have_unsafe_code(name: &str) -> bool {
    PRODUCT.iter().any(|(prefix, _)| name.starts_with(prefix)) || OUTSIDE.iter().any(|part| name.contains(part))
}

/// Returns `true` if a line of product code begins an unsafe block, function or implementation.
pub(crate) fn has_unsafe_code(text: &str) -> bool {
    let product = text.split("#[cfg(test)]").next().unwrap_or(text);
    let code = product.lines().map(|line| line.split("//").next().unwrap_or(line));
    code.into_iter().any(|line| {
        line.match_indices("unsafe ").any(|(at, word)| {
            let is_word = !line[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
            is_word && ["{", "fn", "impl", "extern"].iter().any(|next| line[at + word.len()..].starts_with(next))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_seen_outside_comments_and_tests() {
        let code = ["un", "safe { read() }\n"].concat();
        assert!(has_unsafe_code(&code));
        assert!(!has_unsafe_code(&format!("// {code}")));
        assert!(!has_unsafe_code("if is_unsafe { stop() }"));
        assert!(!has_unsafe_code(&format!("#[cfg(test)]\n{code}")));
        assert!(may_have_unsafe_code("crates/trueno-zram-restore/src/uffd.rs"));
        assert!(!may_have_unsafe_code("crates/trueno-zram-archive/src/lib.rs"));
    }
}

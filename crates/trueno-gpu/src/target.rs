//! The PTX version and SM that PTX text is written for, and the limits of each.

use std::fmt;

/// A PTX ISA version, such as 6.4.
///
/// ```
/// use trueno_gpu::PtxVersion;
/// assert!(PtxVersion(7, 6) > PtxVersion(6, 4));
/// assert_eq!(PtxVersion(6, 4).to_string(), "6.4");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PtxVersion(pub u8, pub u8);

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// PTX version and SM of a kernel's text.
///
/// The driver compiles PTX for any device at least as new as the SM, if it knows the PTX version. The default is the
/// oldest usable pair, so it runs on most devices.
///
/// ```
/// use trueno_gpu::Target;
/// assert_eq!(Target::default().to_string(), "sm_70 (PTX 6.4)");
/// assert_eq!(Target::for_capability(9, 0), Some(Target::SM_90));
/// assert_eq!(Target::for_capability(6, 1), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// SM number, such as 70.
    pub sm: u32,
    /// PTX version.
    pub ptx: PtxVersion,
}

macro_rules! targets {
    ($($name:ident, $sm:literal, $major:literal, $minor:literal;)*) => {
        impl Target {
            $(#[doc = concat!("`sm_", $sm, "`, PTX ", $major, ".", $minor, ".\n\n```\n",
                "assert_eq!(trueno_gpu::Target::", stringify!($name), ".sm, ", $sm, ");\n```")]
            pub const $name: Self = Self { sm: $sm, ptx: PtxVersion($major, $minor) };)*

            /// All known targets, oldest first.
            ///
            /// ```
            /// assert!(trueno_gpu::Target::ALL.is_sorted_by_key(|t| t.sm));
            /// ```
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}
// The PTX version that introduced each SM, and at least 6.4.
targets! {
    SM_70, 70, 6, 4;
    SM_75, 75, 6, 4;
    SM_80, 80, 7, 0;
    SM_86, 86, 7, 1;
    SM_87, 87, 7, 4;
    SM_89, 89, 7, 8;
    SM_90, 90, 7, 8;
    SM_100, 100, 8, 6;
    SM_120, 120, 8, 7;
}

impl Target {
    /// Returns the newest known target that a device of this compute capability runs, or `None` below 7.0.
    ///
    /// ```
    /// use trueno_gpu::Target;
    /// assert_eq!(Target::for_capability(7, 2), Some(Target::SM_70));
    /// assert_eq!(Target::for_capability(12, 1), Some(Target::SM_120));
    /// ```
    #[must_use]
    pub fn for_capability(major: u32, minor: u32) -> Option<Self> {
        let sm = major.saturating_mul(10).saturating_add(minor);
        Self::ALL.iter().rev().find(|t| t.sm <= sm).copied()
    }

    /// Returns the same SM with a newer PTX version, for instructions that need it. An older version changes nothing.
    ///
    /// ```
    /// use trueno_gpu::{PtxVersion, Target};
    /// assert_eq!(Target::SM_70.with_ptx(PtxVersion(7, 6)).ptx, PtxVersion(7, 6));
    /// assert_eq!(Target::SM_90.with_ptx(PtxVersion(6, 4)), Target::SM_90);
    /// ```
    #[must_use]
    pub fn with_ptx(self, ptx: PtxVersion) -> Self {
        Self { ptx: self.ptx.max(ptx), ..self }
    }

    /// Returns the most shared memory that a block can have, including dynamic memory.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::Target::SM_90.max_shared_bytes(), 227 * 1024);
    /// ```
    #[must_use]
    pub const fn max_shared_bytes(self) -> u32 {
        let kib = match self.sm {
            75 => 64,
            80 | 87 => 163,
            86 | 89 => 99,
            90..=119 => 227,
            120.. => 99,
            _ => 96,
        };
        kib * 1024
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::SM_70
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{} (PTX {})", self.sm, self.ptx)
    }
}

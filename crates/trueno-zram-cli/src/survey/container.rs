//! Recognizes files that hold memory or disk pages in a layout of their own, by their first bytes.

/// The bytes that are needed to recognize all of them.
pub(crate) const HEAD_BYTES: usize = 512;

/// A container: what it is, and the command that unpacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    name: &'static str,
    unpack: &'static str,
    at: usize,
    magic: &'static [u8],
}

const fn at(at: usize, magic: &'static [u8], name: &'static str, unpack: &'static str) -> Container {
    Container { name, unpack, at, magic }
}

const CONVERT: &str = "`qemu-img convert -O raw` makes a raw image";

/// By the specification of each format. The type of an ELF file is little-endian: 4 is a core file.
const CONTAINERS: [Container; 16] = [
    at(0, b"QFI\xfb", "a qcow2 image", CONVERT),
    at(0, b"KDMV", "a VMDK image", CONVERT),
    at(0, b"COWD", "a VMDK image", CONVERT),
    at(0, b"# Disk DescriptorFile", "a VMDK descriptor", CONVERT),
    at(0x40, b"\x7f\x10\xda\xbe", "a VDI image", CONVERT),
    at(0, b"vhdxfile", "a VHDX image", CONVERT),
    at(0, b"conectix", "a VHD image", CONVERT),
    at(0, b"KDUMP   ", "a kdump file", "`makedumpfile` converts it"),
    at(0, b"DISKDUMP", "a diskdump file", "`makedumpfile` converts it"),
    at(0, b"EMiL", "a LiME memory dump", "its ranges have headers between them"),
    at(0, b"LUKS\xba\xbe", "an encrypted LUKS volume", "encrypted pages do not compress"),
    at(0, b"\x1f\x8b", "gzip data", "unpack it with `gzip -d`"),
    at(0, b"\xfd7zXZ\0", "xz data", "unpack it with `xz -d`"),
    at(0, b"BZh", "bzip2 data", "unpack it with `bzip2 -d`"),
    at(0, b"PK\x03\x04", "a zip file", "unpack it with `unzip`"),
    at(0x10, b"\x04\0", "an ELF core file", "its pages follow headers"),
];

impl Container {
    /// Returns the container that a file with these first bytes is.
    pub(crate) fn detect(head: &[u8]) -> Option<Self> {
        let starts = |container: &Self| head.get(container.at..).is_some_and(|rest| rest.starts_with(container.magic));
        let is_elf = head.starts_with(b"\x7fELF");
        CONTAINERS.into_iter().find(|container| starts(container) && (is_elf || container.at != 0x10))
    }

    /// A note for the user of a file that is inspected as if it were raw pages.
    pub(crate) fn note(self) -> String {
        let Self { name, unpack, .. } = self;
        format!("looks like {name}, and is inspected byte for byte as a raw image; {unpack}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_first_bytes() {
        let name = |head: &[u8]| Container::detect(head).map(|container| container.name);
        for container in CONTAINERS {
            let mut head = vec![0; container.at];
            if container.at == 0x10 {
                head[..4].copy_from_slice(b"\x7fELF");
            }
            head.extend(container.magic);
            assert!(head.len() <= HEAD_BYTES);
            assert_eq!(name(&head), Some(container.name));
            assert_eq!(name(&head[..head.len() - 1]), None, "{} cut short", container.name);
        }
    }

    #[test]
    fn plain_images_and_programs_are_not_containers() {
        let mut program = [0; 64];
        program[..4].copy_from_slice(b"\x7fELF");
        program[0x10] = 2;
        let mut not_elf = [0; 64];
        not_elf[0x10] = 4;
        for head in [&program[..], &not_elf, &[0; 512], b"", b"Q"] {
            assert_eq!(Container::detect(head), None, "{head:x?}");
        }
    }
}

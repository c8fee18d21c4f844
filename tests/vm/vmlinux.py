"""Takes the kernel proper out of a bzImage: vmlinux.py BZIMAGE VMLINUX.

The header at the start of a bzImage states where the packed kernel lies (the kernel's
Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).
"""
import lzma
import struct
import subprocess
import sys

SECTOR_BYTES = 512


def unpack(image):
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * SECTOR_BYTES + offset
    payload = image[begin:begin + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dc"], input=payload, stdout=subprocess.PIPE,
                              check=False).stdout
    sys.exit(f"the kernel is packed in a way that is not known: {payload[:6].hex()}")


def main():
    with open(sys.argv[1], "rb") as file:
        kernel = unpack(file.read())
    if not kernel.startswith(b"\x7fELF"):
        sys.exit("the unpacked kernel is not an ELF file")
    with open(sys.argv[2], "wb") as file:
        file.write(kernel)


main()

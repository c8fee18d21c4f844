// The two libraries behind PacketCipher.
#pragma once

#include "nic/seal/packet_cipher.h"

namespace pbox::seal {

std::unique_ptr<PacketCipher> make_openssl_cipher(Suite suite, const Keys& keys);

// In builds for amd64 only. False if the CPU has no AES instructions. Any thread.
bool has_ipsec_mb();
// Only if has_ipsec_mb().
Result<std::unique_ptr<PacketCipher>> make_ipsec_mb_cipher(Suite suite, const Keys& keys,
                                                           SecretPages& pages);

}  // namespace pbox::seal

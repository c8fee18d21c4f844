#include "perf/secure/bursts.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "nic/crypto/ciphers.h"

#ifdef PBOX_HAS_IPSEC_MB
#include <intel-ipsec-mb.h>
#endif

namespace pbox::perf {
namespace {

constexpr size_t kNumberWord = offsetof(wire::Header, packet_number) / sizeof(uint64_t);

}  // namespace

Burst::Burst(crypto::Suite given_suite, size_t given_payload_bytes)
    : suite(given_suite), payload_bytes(given_payload_bytes), packets(kPackets) {
  const size_t message_bytes = payload_bytes + sizeof(wire::HeaderWords);
  auto arena = NumaArena::create(2 * kPackets * (message_bytes + 192), kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  memory = std::move(*arena);
  // With an IV of zeros the nonce is the packet number alone.
  for (size_t session = 0; session < kSessions; ++session) {
    keys[session].key.bytes.fill(std::byte(session + 1));
  }
  for (size_t index = 0; index < kPackets; ++index) {
    Packet& packet = packets[index];
    packet.session = index % kSessions;
    packet.header[kNumberWord] = index + 1;
    packet.payload = memory.take(message_bytes);
    packet.room = memory.take(message_bytes);
    std::memset(packet.payload, static_cast<int>(index), payload_bytes);
    std::memcpy(packet.payload + payload_bytes, packet.header.data(), sizeof(packet.header));
  }
}

#ifdef PBOX_HAS_IPSEC_MB

namespace {

constexpr size_t kTagBytes = sizeof(wire::Tag);

uint8_t* raw(void* bytes) {
  return static_cast<uint8_t*>(bytes);
}

class Ways final : public IpsecMbWays {
 public:
  explicit Ways(Burst& burst) : burst_(burst), manager_(alloc_mb_mgr(0)) {
    if (manager_ == nullptr) throw std::runtime_error("no memory for ipsec-mb");
    IMB_ARCH architecture = IMB_ARCH_NONE;
    init_mb_mgr_auto(manager_.get(), &architecture);
    for (size_t session = 0; session < Burst::kSessions; ++session) {
      IMB_AES256_GCM_PRE(manager_.get(), burst.keys[session].key.bytes.data(), &keys_[session]);
    }
    for (size_t index = 0; index < Burst::kPackets; ++index) {
      const uint64_t number = __builtin_bswap64(burst.packets[index].header[kNumberWord]);
      std::memcpy(nonces_[index].data() + 4, &number, sizeof(number));
    }
  }

  void call() override {
    for (size_t index = 0; index < Burst::kPackets; ++index) call(index);
  }

  bool submit_jobs() override {
    size_t done = 0;
    for (size_t index = 0; index < Burst::kPackets; ++index) {
      fill(*IMB_GET_NEXT_JOB(manager_.get()), index);
      for (const IMB_JOB* job = IMB_SUBMIT_JOB_NOCHECK(manager_.get()); job != nullptr;
           job = IMB_GET_COMPLETED_JOB(manager_.get())) {
        done += job->status == IMB_STATUS_COMPLETED ? 1 : 0;
      }
    }
    for (const IMB_JOB* job = IMB_FLUSH_JOB(manager_.get()); job != nullptr;
         job = IMB_FLUSH_JOB(manager_.get())) {
      done += job->status == IMB_STATUS_COMPLETED ? 1 : 0;
    }
    return done == Burst::kPackets && tags_are_right();
  }

  bool submit_burst() override {
    IMB_JOB* jobs[Burst::kPackets];
    if (IMB_GET_NEXT_BURST(manager_.get(), Burst::kPackets, jobs) != Burst::kPackets) return false;
    for (size_t index = 0; index < Burst::kPackets; ++index) {
      fill(*jobs[index], index);
    }
    uint32_t done = IMB_SUBMIT_BURST_NOCHECK(manager_.get(), Burst::kPackets, jobs);
    if (done < Burst::kPackets) done += IMB_FLUSH_BURST(manager_.get(), Burst::kPackets, jobs);
    return done == Burst::kPackets && tags_are_right();
  }

 private:
  struct Free {
    void operator()(IMB_MGR* manager) const { free_mb_mgr(manager); }
  };

  void call(size_t index) {
    Burst::Packet& packet = burst_.packets[index];
    gcm_context_data context;
    const gcm_key_data* key = &keys_[packet.session];
    const IMB_MGR* manager = manager_.get();
    if (burst_.suite == crypto::Suite::kGcm256) {
      IMB_AES256_GCM_DEC(manager, key, &context, raw(packet.room), raw(packet.payload),
                         burst_.payload_bytes, nonces_[index].data(), raw(packet.header.data()),
                         sizeof(packet.header), raw(packet.tag.data()), kTagBytes);
      return;
    }
    IMB_AES256_GMAC_INIT(manager, key, &context, nonces_[index].data(), nonces_[index].size());
    IMB_AES256_GMAC_UPDATE(manager, key, &context, raw(packet.payload), burst_.payload_bytes);
    IMB_AES256_GMAC_UPDATE(manager, key, &context, raw(packet.header.data()),
                           sizeof(packet.header));
    IMB_AES256_GMAC_FINALIZE(manager, key, &context, raw(packet.tag.data()), kTagBytes);
  }

  void fill(IMB_JOB& job, size_t index) {
    const Burst::Packet& packet = burst_.packets[index];
    const gcm_key_data* key = &keys_[packet.session];
    job.src = raw(packet.payload);
    job.auth_tag_output = raw(tags_[index].data());
    job.auth_tag_output_len_in_bytes = kTagBytes;
    job.chain_order = IMB_ORDER_HASH_CIPHER;
    job.cipher_direction = IMB_DIR_DECRYPT;
    if (burst_.suite == crypto::Suite::kGcm256) {
      job.cipher_mode = IMB_CIPHER_GCM;
      job.hash_alg = IMB_AUTH_AES_GMAC;
      job.enc_keys = job.dec_keys = key;
      job.key_len_in_bytes = 32;
      job.dst = raw(packet.room);
      job.cipher_start_src_offset_in_bytes = 0;
      job.msg_len_to_cipher_in_bytes = burst_.payload_bytes;
      job.hash_start_src_offset_in_bytes = 0;
      job.msg_len_to_hash_in_bytes = burst_.payload_bytes;
      job.iv = nonces_[index].data();
      job.iv_len_in_bytes = nonces_[index].size();
      job.u.GCM.aad = packet.header.data();
      job.u.GCM.aad_len_in_bytes = sizeof(packet.header);
      return;
    }
    job.cipher_mode = IMB_CIPHER_NULL;
    job.hash_alg = IMB_AUTH_AES_GMAC_256;
    job.hash_start_src_offset_in_bytes = 0;
    job.msg_len_to_hash_in_bytes = Burst::message(packet, burst_.payload_bytes).size();
    job.u.GMAC._key = key;
    job.u.GMAC._iv = nonces_[index].data();
    job.u.GMAC.iv_len_in_bytes = nonces_[index].size();
  }

  bool tags_are_right() const {
    bool all = true;
    for (size_t index = 0; index < Burst::kPackets; ++index) {
      all &= wire::is_equal(tags_[index], burst_.packets[index].tag);
    }
    return all;
  }

  Burst& burst_;
  std::unique_ptr<IMB_MGR, Free> manager_;
  alignas(64) std::array<gcm_key_data, Burst::kSessions> keys_;
  std::array<std::array<uint8_t, crypto::kIvBytes>, Burst::kPackets> nonces_{};
  std::array<wire::Tag, Burst::kPackets> tags_{};
};

}  // namespace

std::unique_ptr<IpsecMbWays> make_ipsec_mb_ways(Burst& burst) {
  return crypto::has_ipsec_mb() ? std::make_unique<Ways>(burst) : nullptr;
}

#else

std::unique_ptr<IpsecMbWays> make_ipsec_mb_ways(Burst&) {
  return nullptr;
}

#endif

}  // namespace pbox::perf

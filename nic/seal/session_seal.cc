#include "nic/seal/session_seal.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::seal {
namespace {

constexpr uint64_t kTickNs = kNanosPerSecond;
static_assert(KeyUpdates::kPacketsMax < KeyUpdates::kPacketsLimit);

constexpr uint64_t in_words(uint8_t flags) {
  return uint64_t{flags} << (8 * offsetof(wire::Header, flags));
}

}  // namespace

SessionSeal::SessionSeal(std::unique_ptr<KeyChain> sending, std::unique_ptr<KeyChain> receiving,
                         bool encrypts, const std::optional<KeyUpdates>& updates)
    : keys_(std::make_unique<Keys>()) {
  PBOX_CHECK(sending != nullptr && receiving != nullptr);
  PBOX_CHECK(!updates || (updates->packets > 0 && updates->packets <= KeyUpdates::kPacketsMax));
  keys_->encrypts = encrypts;
  keys_->updates = updates;
  keys_->sending.chain = std::move(sending);
  begin_generation(next_number_);
  keys_->receiving.chain = std::move(receiving);
}

SessionSeal SessionSeal::closed() {
  SessionSeal seal;
  seal.keys_ = std::make_unique<Keys>();
  return seal;
}

wire::Tag SessionSeal::seal_with_keys(wire::HeaderWords& words, const std::byte*& payload,
                                      size_t bytes, std::byte* room) {
  PBOX_DCHECK((words[0] & in_words(kKeyFlags)) == 0);
  PBOX_DCHECK(bytes <= limits::kFragmentBytesMax);
  Sending& sending = keys_->sending;
  PBOX_CHECK(sending.chain != nullptr);  // closed() must not send
  if (words[1] >= sending.update_at) [[unlikely]] {
    if (keys_->updates && sending.generation == keys_->receiving.generation) {
      update_sending(words[1]);
    }
    if (words[1] >= sending.limit_at) return refuse_to_seal(payload, bytes, room);
  }
  if ((sending.generation & 1) != 0) words[0] |= in_words(wire::flag::kKeyPhase);
  if (keys_->encrypts) words[0] |= in_words(wire::flag::kEncrypted);
  PBOX_DCHECK(!keys_->encrypts || room != nullptr);
  const wire::Tag tag = sending.chain->present().seal(words, {payload, bytes}, room);
  if (keys_->encrypts) payload = room;
  return tag;
}

void SessionSeal::seal(const wire::TagPolicy& policy, nic::TxPacket& packet, std::byte* room) {
  packet.header.flags &= static_cast<uint8_t>(~kKeyFlags);
  auto words = std::bit_cast<wire::HeaderWords>(packet.header);
  packet.tag = seal(policy, words, packet.payload, packet.header.payload_bytes, room);
  packet.header = std::bit_cast<wire::Header>(words);
}

// Returns a tag with which the other end cannot open the packet. If the session encrypts, replaces
// the payload by zeros, so that it is not sent unencrypted.
wire::Tag SessionSeal::refuse_to_seal(const std::byte*& payload, size_t bytes, std::byte* room) {
  PBOX_DCHECK(bytes <= limits::kFragmentBytesMax);
  PBOX_DCHECK(!keys_->encrypts || room != nullptr);
  if (keys_->encrypts) {
    std::memset(room, 0, bytes);
    payload = room;
  }
  return {};
}

void SessionSeal::begin_generation(uint64_t first_number) {
  Sending& sending = keys_->sending;
  Receiving& receiving = keys_->receiving;
  const uint64_t packets = keys_->updates ? keys_->updates->packets : KeyUpdates::kPacketsLimit;
  sending.limit_at = first_number + KeyUpdates::kPacketsLimit;
  sending.update_at = first_number + packets;
  sending.update_at_ns = 0;
  receiving.until_update = packets;
  PBOX_DCHECK(sending.update_at > first_number && sending.update_at <= sending.limit_at);
}

void SessionSeal::update_sending(uint64_t first_number) {
  Sending& sending = keys_->sending;
  PBOX_DCHECK(sending.chain != nullptr);
  PBOX_DCHECK(sending.generation <= keys_->receiving.generation);
  sending.chain->advance();
  ++sending.generation;
  begin_generation(first_number);
}

// A packet with the other key phase belongs to the next generation or to the one before. Its number
// decides which, because the other end seals consecutive numbers with one key. The end that begins
// updates opens the next generation only after it has begun one: the other end could otherwise make
// it derive keys for every packet.
bool SessionSeal::open_with_keys(wire::Parsed& parsed, std::byte* room) {
  const wire::Header& header = parsed.header;
  const bool is_encrypted = (header.flags & wire::flag::kEncrypted) != 0;
  if (is_encrypted != keys_->encrypts || header.payload_bytes > limits::kFragmentBytesMax)
    return false;
  Receiving& receiving = keys_->receiving;
  if (receiving.chain == nullptr) return false;
  const bool phase = (header.flags & wire::flag::kKeyPhase) != 0;
  const bool is_present = phase == ((receiving.generation & 1) != 0);
  const bool may_be_next = !keys_->updates || keys_->sending.generation > receiving.generation;
  const bool is_next = !is_present && may_be_next && header.packet_number > receiving.first_number;
  if (!is_present && !is_next && !receiving.has_before) return false;
  PBOX_DCHECK(!is_encrypted || room != nullptr);
  PacketCipher& cipher = is_present ? receiving.chain->present()
                         : is_next  ? receiving.chain->next()
                                    : receiving.chain->before();
  wire::Tag tag;
  std::memcpy(tag.data(), parsed.tag, tag.size());
  if (!cipher.open(std::bit_cast<wire::HeaderWords>(header), {parsed.payload, header.payload_bytes},
                   tag, room)) {
    return false;
  }
  if (!receiving.window.take(header.packet_number)) return false;
  if (keys_->encrypts) parsed.payload = room;
  if (is_next) [[unlikely]] {
    receiving.chain->advance();
    ++receiving.generation;
    receiving.first_number = header.packet_number;
    receiving.has_before = true;
    receiving.forgets_before = false;
    if (keys_->sending.generation < receiving.generation) update_sending(next_number_);
    PBOX_DCHECK(keys_->sending.generation >= receiving.generation);
  }
  if (--receiving.until_update == 0) [[unlikely]]
    note_update_due();
  return true;
}

void SessionSeal::note_update_due() {
  keys_->sending.update_at = std::min(keys_->sending.update_at, next_number_);
}

void SessionSeal::take_tick(uint64_t now_ns) {
  PBOX_DCHECK(keys_ != nullptr && now_ns >= keys_->next_tick_ns);
  keys_->next_tick_ns = now_ns + kTickNs;
  Sending& sending = keys_->sending;
  if (keys_->updates) {
    if (sending.update_at_ns == 0) sending.update_at_ns = now_ns + keys_->updates->time_ns;
    if (now_ns >= sending.update_at_ns) note_update_due();
  }
  Receiving& receiving = keys_->receiving;
  if (!receiving.has_before) return;
  if (!std::exchange(receiving.forgets_before, true)) return;
  receiving.has_before = false;
  receiving.chain->forget_before();
}

}  // namespace pbox::seal

// Makes the packets of a result. On the data path; used by Egress alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "nic/port.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/tag.h"
#include "nic/wire/zeros.h"
#include "pipeline/job_shard.h"
#include "pipeline/result_form.h"
#include "pipeline/sync/rules.h"

namespace pbox::pipeline {

// Makes the packets of one result for one worker. Sets the header fields that they share only once.
class ResultMaker {
 public:
  // `in_full`: as in result_form(), or replies_in_full() in a relaxed shard.
  ResultMaker(const JobShard& shard, Session& session, const Chunk& chunk, uint32_t round,
              bool in_full, const wire::TagPolicy& tag)
      : session_(session),
        form_(result_form(shard, chunk, round, in_full)),
        tag_(tag),
        workers_(static_cast<uint16_t>(shard.worker_count())),
        contributors_(chunk.contributors[round & 1]) {
    PBOX_DCHECK(form_.data != nullptr);
    if (in_full && !chunk.deltas.is_result_full && contributors_ != nullptr) [[unlikely]] {
      // The counts are those of a delta's fragments, which differ from a full result's. All
      // fragments get the least count.
      least_ = *std::min_element(contributors_, contributors_ + chunk.fragment_count);
      has_one_count_ = true;
    }
    PBOX_DCHECK(session.rank < shard.worker_count());
    PBOX_DCHECK(shard.is_relaxed() == (chunk.sync != nullptr));
    wire::Header header;
    header.set_type(wire::PacketType::kResult);
    header.spi = session.spi | wire::kSpiToWorker;
    header.epoch = shard.epoch;
    header.chunk = chunk.id;
    header.round = round;
    header.credit = static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
    header.dtype_scale = static_cast<uint16_t>(form_.dtype);
    header.generation = shard.generation;
    if (shard.is_collective) [[unlikely]]
      header.timestamp_us = finished_shape(chunk).shape.digest;
    if (chunk.applies_on_arrival()) {
      // applied() says up to which of its own rounds the rank may read. A packet for a rank whose
      // read is parked must not answer that read, so it names one round less. Where workers add
      // their own updates to the data, the number is exact for each fragment.
      const sync::Progress& progress = chunk.sync->progress;
      const bool exact = sync::reads_cached(chunk.sync->spec);
      const bool is_parked = !exact && progress.is_parked(session.rank);
      header.timestamp_us =
          static_cast<uint32_t>(progress.next(session.rank) - (is_parked ? 1 : 0));
      applied_mask_ = exact ? chunk.claimed[session.rank] : 0;
    } else if (chunk.sync != nullptr) {
      const sync::Pushed& pushed = chunk.sync->pushed[session.rank];
      header.timestamp_us = pushed.round;
      applied_mask_ = pushed.counted;
      // The bits are those of a delta's fragments. A fragment of weights in full is said to include
      // the push only if all fragments do.
      if (in_full) applied_mask_ = pushed.counted == chunk.full_mask ? UINT64_MAX : 0;
    }
    words_ = std::bit_cast<wire::HeaderWords>(header);
  }

  uint32_t fragment_count() const { return form_.fragment_count; }

  // Returns how many packets in succession, from this fragment on, make_run() can make. Returns 0
  // if the headers of fragments differ in more than the fragment number, or if keys seal them.
  uint32_t run_length(uint32_t fragment) const {
    PBOX_DCHECK(fragment < form_.fragment_count);
    const bool are_alike = contributors_ == nullptr && applied_mask_ == 0;
    const bool is_plain = !tag_.payload_crc && !session_.seal.has_keys();
    return are_alike && is_plain ? form_.fragment_count - fragment : 0;
  }
  // Returns the payload bytes of each packet of a run; the chunk's last packet may have fewer.
  uint32_t fragment_bytes() const { return form_.fragment_bytes; }

  // Makes the packets of successive fragments, from `first` on: at most run_length(first). The
  // packets are those that make() would make, but only packet number, fragment number, payload and
  // tag are computed for each. Returns the bytes of all payloads.
  uint64_t make_run(uint32_t first, std::span<nic::TxPacket> packets) const {
    PBOX_DCHECK(!packets.empty() && packets.size() <= run_length(first));
    const size_t offset = size_t{first} * form_.fragment_bytes;
    const bool has_last = first + packets.size() >= form_.fragment_count;
    const auto whole = packets.first(packets.size() - (has_last ? 1 : 0));
    wire::HeaderWords words = words_;
    words[0] |= length_field(form_.fragment_bytes);
    words[1] = session_.seal.take_numbers(packets.size());
    words[3] |= fragment_field(first);
    const std::byte* payload = form_.data + offset;
    for (nic::TxPacket& packet : whole) {
      write(words, payload, packet);
      payload += form_.fragment_bytes;
      ++words[1];
      words[3] += fragment_field(1);
    }
    const uint64_t bytes = whole.size() * uint64_t{form_.fragment_bytes};
    if (!has_last) return bytes;
    const uint32_t last_bytes =
        wire::fragment_length(form_.bytes, form_.fragment_bytes, form_.fragment_count - 1);
    words[0] = words_[0] | length_field(last_bytes) | flags_field(wire::flag::kLast);
    write(words, payload, packets.back());
    return bytes + last_bytes;
  }

  // Makes one fragment's packet. `room`, here and below: memory for the payload, if encrypted.
  void make(uint32_t fragment, uint8_t flags, std::byte* room, nic::TxPacket& packet) const {
    PBOX_DCHECK(fragment < form_.fragment_count);
    const uint32_t bytes = wire::fragment_length(form_.bytes, form_.fragment_bytes, fragment);
    const uint16_t contributors = contributors_of(fragment);
    make(fragment, 1, flags, {form_.data + size_t{fragment} * form_.fragment_bytes, bytes},
         contributors, room, packet);
  }

  // Returns the fragments among `fragments` that have as many contributors as `fragment`.
  uint64_t alike(uint32_t fragment, uint64_t fragments) const {
    if (contributors_ == nullptr) return fragments;
    PBOX_DCHECK(fragment < form_.fragment_count);
    uint64_t alike = 0;
    for (uint64_t left = fragments; left != 0; left &= left - 1) {
      const auto each = static_cast<uint32_t>(std::countr_zero(left));
      if (contributors_of(each) == contributors_of(fragment)) alike |= uint64_t{1} << each;
    }
    return alike;
  }

  // Makes a packet that names these fragments, which are zero and have equally many contributors
  // (alike()). `zeros`: memory for its payload.
  void make_zeros(uint64_t fragments, uint8_t flags, wire::ZerosPayload& zeros, std::byte* room,
                  nic::TxPacket& packet) const {
    PBOX_DCHECK(fragments != 0 && applied_mask_ == 0);
    const auto fragment = static_cast<uint32_t>(std::countr_zero(fragments));
    zeros.mask = fragments;
    const uint16_t contributors = contributors_of(fragment);
    make<wire::PacketType::kZeros>(fragment, 1, flags,
                                   {reinterpret_cast<const std::byte*>(&zeros), sizeof(zeros)},
                                   contributors, room, packet);
  }

  // Makes a packet of these rows of a table, from as many fragments as fit. If the rows of
  // `fragment` cannot be sent separately, the packet has the whole fragment. Returns the number of
  // fragments. `rows_room`: memory for its payload.
  uint32_t make_rows(const wire::RowLayout& layout, wire::RowBits rows, uint32_t fragment,
                     uint8_t flags, std::byte* rows_room, std::byte* room,
                     nic::TxPacket& packet) const {
    const uint32_t count = wire::fragments_by_rows(layout, rows, fragment);
    if (count == 0) {
      make(fragment, flags, room, packet);
      return 1;
    }
    PBOX_DCHECK(rows_room != nullptr && fragment + count <= fragment_count());
    const uint32_t bytes =
        wire::write_rows(layout, rows, fragment, count, rows_room,
                         [&](uint32_t, uint32_t begin, uint32_t) { return form_.data + begin; });
    uint16_t contributors = workers_;
    for (uint32_t each = fragment; contributors_ != nullptr && each < fragment + count; ++each) {
      contributors = std::min(contributors, contributors_of(each));
    }
    make(fragment, count, static_cast<uint8_t>(flags | wire::flag::kRows), {rows_room, bytes},
         contributors, room, packet);
    return count;
  }

 private:
  uint16_t contributors_of(uint32_t fragment) const {
    if (contributors_ == nullptr) return workers_;
    return has_one_count_ ? least_ : contributors_[fragment];
  }

  // The fields that differ are set in whole words. If narrow stores wrote them, the tag's wider
  // loads would stall on those stores, once per word and packet.
  template <wire::PacketType kType = wire::PacketType::kResult>
  [[gnu::always_inline]] void make(uint32_t fragment, uint32_t count, uint8_t flags,
                                   std::span<const std::byte> payload, uint16_t contributors,
                                   std::byte* room, nic::TxPacket& packet) const {
    const auto bytes = static_cast<uint32_t>(payload.size());
    if (fragment + count >= form_.fragment_count) flags |= wire::flag::kLast;
    wire::HeaderWords words = words_;
    static_assert(offsetof(wire::Header, version_type) == 0);
    words[0] ^= static_cast<uint64_t>(kType) ^ static_cast<uint64_t>(wire::PacketType::kResult);
    words[0] |= flags_field(flags) | length_field(bytes);
    words[4] += applied_mask_ >> fragment & 1;
    words[3] |= fragment_field(fragment);
    if (contributors != workers_) set_contributors(contributors, words);
    static_assert(offsetof(wire::Header, timestamp_us) == 4 * 8);
    packet.to = &session_.endpoint;
    packet.from = &session_.local_address;
    packet.payload = payload.data();
    packet.tag = session_.seal.seal(tag_, words, packet.payload, bytes, room);
    write_header(words, packet);
  }

  // Writes one packet of a run.
  [[gnu::always_inline]] void write(const wire::HeaderWords& words, const std::byte* payload,
                                    nic::TxPacket& packet) const {
    packet.to = &session_.endpoint;
    packet.from = &session_.local_address;
    packet.payload = payload;
    packet.tag = wire::make_tag({}, words, nullptr, 0);
    write_header(words, packet);
  }

  // Copies words, because a bit_cast of the whole header is compiled to one store per field.
  [[gnu::always_inline]] static void write_header(const wire::HeaderWords& words,
                                                  nic::TxPacket& packet) {
    auto* header = reinterpret_cast<std::byte*>(&packet.header);
    for (size_t word = 0; word < words.size(); ++word) {
      std::memcpy(header + word * sizeof(words[word]), &words[word], sizeof(words[word]));
    }
  }

  // Return a value at the place of its field in words[0] or words[3].
  static uint64_t flags_field(uint8_t flags) {
    return uint64_t{flags} << (8 * offsetof(wire::Header, flags));
  }
  static uint64_t length_field(uint32_t bytes) {
    PBOX_DCHECK(bytes <= limits::kFragmentBytesMax);
    return uint64_t{bytes} << (8 * offsetof(wire::Header, payload_bytes));
  }
  static uint64_t fragment_field(uint32_t fragment) {
    static_assert(offsetof(wire::Header, fragment) / 8 == 3);
    return uint64_t{fragment} << (8 * (offsetof(wire::Header, fragment) % 8));
  }

  static void set_contributors(uint16_t contributors, wire::HeaderWords& words) {
    words[0] |= flags_field(wire::flag::kPartial);
    words[4] |= uint64_t{contributors} << (8 * (offsetof(wire::Header, dtype_scale) % 8) + 4);
    static_assert(offsetof(wire::Header, dtype_scale) / 8 == 4);
  }

  Session& session_;
  ResultForm form_;
  const wire::TagPolicy& tag_;
  uint16_t workers_;
  const uint16_t* contributors_;  // by fragment; null: every result contains all workers
  bool has_one_count_ = false;    // all fragments have `least_` instead
  uint16_t least_ = 0;
  uint64_t applied_mask_ = 0;  // fragments that contain one more of the rank's own rounds
  wire::HeaderWords words_{};
};

}  // namespace pbox::pipeline

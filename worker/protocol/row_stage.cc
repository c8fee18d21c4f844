#include "worker/protocol/row_stage.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pbox::worker {

void RowStage::add(const wire::Parsed& packet, uint64_t fragments) {
  PBOX_DCHECK(packet.payload != nullptr || packet.header.payload_bytes == 0);
  packets_.push_back({packet.header, bytes_.size(), fragments});
  bytes_.insert(bytes_.end(), packet.payload, packet.payload + packet.header.payload_bytes);
}

void RowStage::clear() {
  packets_ = {};
  bytes_ = {};
}

void RowStage::apply(const wire::RowLayout& layout, std::byte* chunk, std::byte* shadow) {
  PBOX_DCHECK(chunk != nullptr);
  const auto write = [&](uint32_t begin, const std::byte* source, size_t bytes) {
    PBOX_DCHECK(begin + bytes <= layout.chunk_bytes);
    std::memcpy(chunk + begin, source, bytes);
    if (shadow != nullptr) std::memcpy(shadow + begin, source, bytes);
  };
  for (const Packet& packet : packets_) {
    const std::byte* payload = bytes_.data() + packet.offset;
    if ((packet.header.flags & wire::flag::kRows) == 0) {
      write(packet.header.fragment * layout.fragment_bytes, payload, packet.header.payload_bytes);
      continue;
    }
    wire::RowsView rows;
    PBOX_CHECK(wire::parse_rows(layout, {packet.header, payload}, rows));
    wire::for_each_run(layout, rows, [&](const wire::RowRun& run, const std::byte* source) {
      for (uint32_t begin = run.begin; begin < run.end;) {
        const uint32_t fragment = begin / layout.fragment_bytes;
        const uint32_t end = std::min(run.end, (fragment + 1) * layout.fragment_bytes);
        const bool is_taken = (packet.fragments >> fragment & 1) != 0;
        if (is_taken) write(begin, source + (begin - run.begin), end - begin);
        begin = end;
      }
    });
  }
  clear();
}

}  // namespace pbox::worker

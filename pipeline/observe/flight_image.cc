#include "pipeline/observe/flight_image.h"

#include <algorithm>
#include <cstddef>
#include <new>

#include "nic/wire/crc32c.h"
#include "pipeline/observe/flight_ring.h"

namespace pbox::pipeline {
namespace {

// Number of records that the writer may have begun since its position was read.
constexpr uint64_t kMargin = limits::kBurstPackets;
// The largest ring of one pipeline: 4 GiB of records.
constexpr uint64_t kCapacityMax = uint64_t{1} << 26;

uint32_t checksum_of(const FlightHead& head) {
  return wire::crc32c(0, reinterpret_cast<const std::byte*>(&head), offsetof(FlightHead, checksum));
}

Error no_image(const std::string& what) {
  return {ErrorCode::kInvalidArgument, what};
}

// Reads and checks the head of the image at the beginning of `bytes`.
Status read_head(std::span<const std::byte> bytes, FlightHead& head) {
  if (bytes.size() < kFlightHeadBytes)
    return no_image("the file ends within the head of an image; copy it again");
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof(head));
  if (std::memcmp(head.magic, kFlightMagic, sizeof(head.magic)) != 0) {
    return no_image("the file is not a flight recording");
  }
  if (head.version != kFlightVersion) {
    return no_image("the file has format " + std::to_string(head.version) +
                    ", but this program reads format " + std::to_string(kFlightVersion) +
                    "; use the pboxctl of the box's release");
  }
  // The number of records is not in the checksum, because it grows.
  const bool is_countable = head.written.load(std::memory_order_relaxed) < UINT64_MAX - kMargin;
  if (head.checksum != checksum_of(head) || head.capacity == 0 || head.capacity > kCapacityMax ||
      !is_countable) {
    return no_image("the head of an image is damaged; copy the file again");
  }
  return ok_status();
}

// Records [first, end) of a ring.
struct Extent {
  uint64_t first = 0;
  uint64_t end = 0;
};
// Returns the records that are intact in a copy, if the number of records written has grown from
// `written` to `written_after` while the copy was made.
Extent extent_of(const FlightHead& head, uint64_t written, uint64_t written_after) {
  // If the number has not grown, at most the record that the writer was writing is damaged.
  const uint64_t reached = written_after + (written == written_after ? 1 : kMargin);
  const uint64_t first = reached > head.capacity ? reached - head.capacity : 0;
  return {std::min(written, first), written};
}

// Returns whether the writer was replacing this record in place.
bool is_incomplete(const FlightRecord& record) {
  return record.kind == FlightKind::kNone;
}

}  // namespace

FlightRing::FlightRing(std::span<std::byte> memory) {
  if (memory.empty()) return;
  auto* head = reinterpret_cast<FlightHead*>(memory.data());
  PBOX_CHECK(memory.size() >= flight_image_bytes(head->capacity));
  PBOX_CHECK(std::has_single_bit(head->capacity));
  records_ = reinterpret_cast<FlightRecord*>(memory.data() + kFlightHeadBytes);
  published_ = &head->written;
  mask_ = head->capacity - 1;
}

void make_flight_head(const FlightHeadOptions& options, std::byte* memory) {
  auto* head = new (memory) FlightHead;
  std::memcpy(head->magic, kFlightMagic, sizeof(head->magic));
  head->version = kFlightVersion;
  head->pipeline_index = options.pipeline_index;
  head->capacity = options.capacity;
  head->begun_unix_ns = options.begun_unix_ns;
  head->begun_ns = options.begun_ns;
  head->checksum = checksum_of(*head);
}

Result<std::vector<FlightImage>> read_flight_images(std::span<const std::byte> bytes) {
  std::vector<FlightImage> images;
  do {
    FlightHead head;
    if (const Status status = read_head(bytes, head); !status) return status.error();
    const size_t image_bytes = flight_image_bytes(head.capacity);
    if (bytes.size() < image_bytes)
      return no_image("the file ends within the records of an image; copy it again");
    const uint64_t written = head.written.load(std::memory_order_relaxed);
    const bool is_ring = head.copied_from == 0;
    const Extent extent =
        is_ring ? extent_of(head, written, written) : Extent{0, std::min(written, head.capacity)};
    FlightImage& image = images.emplace_back();
    image.pipeline_index = head.pipeline_index;
    image.begun_unix_ns = head.begun_unix_ns;
    image.begun_ns = head.begun_ns;
    image.first = is_ring ? extent.first : head.copied_from - 1;
    image.records.resize(extent.end - extent.first);
    for (uint64_t number = extent.first; number < extent.end; ++number) {
      const size_t place = kFlightHeadBytes + number % head.capacity * sizeof(FlightRecord);
      std::memcpy(static_cast<void*>(&image.records[number - extent.first]), bytes.data() + place,
                  sizeof(FlightRecord));
    }
    if (is_ring && !image.records.empty() && is_incomplete(image.records.back()))
      image.records.pop_back();
    bytes = bytes.subspan(image_bytes);
  } while (!bytes.empty());
  return images;
}

Result<std::string> copy_flight_image(const FlightReader& read) {
  const Error failed{ErrorCode::kSystem, "cannot read the flight recorder"};
  std::string head_bytes(kFlightHeadBytes, '\0');
  if (!read(0, std::as_writable_bytes(std::span(head_bytes)))) return failed;
  FlightHead head;
  const Status status = read_head(std::as_bytes(std::span(head_bytes)), head);
  if (!status) return status.error();
  const uint64_t written = head.written.load(std::memory_order_relaxed);
  std::vector<FlightRecord> ring(std::min(head.capacity, written + kMargin));
  uint64_t written_after = 0;
  const uint64_t newest = (written - 1) % ring.size();
  FlightRecord newest_after;
  if (!read(kFlightHeadBytes, std::as_writable_bytes(std::span(ring))) ||
      !read(offsetof(FlightHead, written), std::as_writable_bytes(std::span(&written_after, 1))) ||
      (written > 0 && !read(kFlightHeadBytes + newest * sizeof(FlightRecord),
                            std::as_writable_bytes(std::span(&newest_after, 1))))) {
    return failed;
  }
  Extent extent = extent_of(head, written, written_after);
  if (extent.end > extent.first &&
      (is_incomplete(ring[newest]) ||
       std::memcmp(&ring[newest], &newest_after, sizeof(FlightRecord)) != 0)) {
    --extent.end;
  }
  const uint64_t count = extent.end - extent.first;
  head.capacity = std::max<uint64_t>(count, 1);
  head.copied_from = extent.first + 1;
  head.checksum = checksum_of(head);
  head.written.store(count, std::memory_order_relaxed);
  std::string image(kFlightHeadBytes, '\0');
  std::memcpy(image.data(), static_cast<const void*>(&head), sizeof(head));
  image.reserve(flight_image_bytes(head.capacity));
  for (uint64_t number = extent.first; number < extent.end; ++number) {
    image.append(reinterpret_cast<const char*>(&ring[number % ring.size()]), sizeof(FlightRecord));
  }
  image.resize(flight_image_bytes(head.capacity), '\0');
  return image;
}

const char* to_string(Verdict verdict) {
  constexpr const char* kNames[] = {
      "pending",     "aggregated",      "duplicate", "stale",          "dropped", "pull",
      "too_short",   "version",         "type",      "reserved_flags", "length",  "tag",
      "wrong_queue", "unknown_session", "epoch",     "generation",     "chunk",   "fragment",
      "dtype",       "round",           "shape"};
  static_assert(std::size(kNames) == static_cast<size_t>(Verdict::kCount));
  const auto index = static_cast<size_t>(verdict);
  return index < std::size(kNames) ? kNames[index] : nullptr;
}

}  // namespace pbox::pipeline

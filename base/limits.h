// Every bound of the system, and how the bounds relate. A number that limits something lives here
// and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbox::limits {

// --- chunks and fragments ---
// PHub's 32 KiB, less 512 bytes: so that two chunks with their headers and tags leave as one
// segmented datagram of 64 KiB, which halves what the kernel does per byte (see kUdpPayloadMax).
inline constexpr uint32_t kChunkBytesDefault = 32 * 1024 - 512;
inline constexpr uint32_t kChunkBytesMin = 1024;
inline constexpr uint32_t kFragmentCountMax = 64;  // one 64-bit mask says what has arrived

// Fragment payloads, by path MTU: 1500, 9000, and loopback's 65536.
inline constexpr uint32_t kFragmentBytesEthernet = 1408;
inline constexpr uint32_t kFragmentBytesJumbo = 8192;
inline constexpr uint32_t kFragmentBytesLoopback = 32 * 1024;
inline constexpr uint32_t kFragmentBytesMax = kFragmentBytesLoopback;
inline constexpr uint32_t kFragmentBytesMin = 512;  // path MTU 640: below IPv6's least MTU

// The widest chunk needs the widest fragments; admission checks chunk <= 64 fragments of the job's
// path.
inline constexpr uint32_t kChunkBytesMax = kFragmentCountMax * kFragmentBytesMax;
// The default chunk fits into 64 fragments on every path that is served at all.
static_assert(kChunkBytesDefault <= kFragmentCountMax * kFragmentBytesMin);

inline constexpr uint32_t kHeaderBytes = 40;
inline constexpr uint32_t kTagBytes = 16;
inline constexpr uint32_t kPacketOverheadBytes = kHeaderBytes + kTagBytes;
inline constexpr uint32_t kPacketBytesMax = kPacketOverheadBytes + kFragmentBytesMax;
inline constexpr uint32_t kUdpPayloadMax = 65507;
static_assert(kPacketBytesMax <= kUdpPayloadMax);
static_assert(2 * (kPacketOverheadBytes + kChunkBytesDefault) <= kUdpPayloadMax);

// --- jobs ---
inline constexpr uint32_t kWorkersPerJobMax = 256;
inline constexpr uint32_t kChunksPerJobMax = 1'000'000;
inline constexpr uint32_t kPartsPerJobMax = 256;
inline constexpr uint32_t kTensorsPerJobMax = 65'536;
inline constexpr uint32_t kTensorNameBytesMax = 256;
inline constexpr uint32_t kJobNameBytesMax = 128;
inline constexpr uint32_t kJobsMax = 64;
inline constexpr uint32_t kSlotRing = 2;  // rounds kept per chunk, indexed by round & 1

// --- workers ---
inline constexpr uint32_t kMemoryRegionsMax = 1024;  // that a worker has registered at once

// --- pipelines ---
inline constexpr uint32_t kPipelinesMax = 64;
inline constexpr uint32_t kSessionsPerPipelineMax = 4096;  // low 12 bits of an spi
static_assert((kSessionsPerPipelineMax & (kSessionsPerPipelineMax - 1)) == 0);
inline constexpr uint32_t kBurstPackets = 64;

// --- credit ---
inline constexpr uint32_t kCreditUnitBytes = 512;
inline constexpr uint32_t kCreditBytesMax = 0xffffu * kCreditUnitBytes;

// --- control ---
inline constexpr uint32_t kControlMessageBytesMax = 1u << 20;
inline constexpr uint32_t kRssKeyBytesMax = 64;
inline constexpr uint32_t kRssTableEntriesMax = 2048;
inline constexpr uint32_t kRssTablesMax = 16;  // NICs of a box whose RSS is used
// A SESSION has room for the largest chunk map and all tables: a chunk and an entry take a byte
// each (queues are fewer than 128), a pipeline and a table's own fields well under 64.
static_assert(kPipelinesMax < 128);
static_assert(kChunksPerJobMax + kRssTablesMax * (64 + kRssKeyBytesMax + kRssTableEntriesMax) +
                  kPipelinesMax * 64 + 1024 <=
              kControlMessageBytesMax);
inline constexpr uint32_t kControlConnectionsMax = 4096;
// Chunks in one RoundMap: a round and a place in `give` take at most 5 and 3 bytes each.
inline constexpr uint32_t kRoundMapChunksMax = 65'536;
static_assert(kRoundMapChunksMax * 8 + 64 <= kControlMessageBytesMax);

// --- admin (HTTP) ---
inline constexpr uint32_t kAdminConnectionsMax = 128;
inline constexpr uint32_t kAdminHeaderBytesMax = 8192;  // request line and fields
inline constexpr uint32_t kAdminBodyBytesMax = 4096;    // of a POST
inline constexpr uint32_t kAdminTimeoutMs = 10'000;     // per request read, and per answer written
// Ranks with metrics of their own, over all jobs of a box: a dozen series each.
inline constexpr uint32_t kMetricRanksMax = 1024;

// Of the trace of a job's rounds, on all pipelines of a box: 8 MiB, and as much again as text.
inline constexpr uint32_t kTraceEventsMax = 256 * 1024;
inline constexpr uint32_t kTraceSecondsMax = 600;

// --- names outsiders rely on ---
inline constexpr uint16_t kAdminPort = 9540;
inline constexpr uint16_t kControlPort = 9541;
inline constexpr uint16_t kDataPortFirst = 9542;
inline constexpr uint8_t kWireVersion = 1;

}  // namespace pbox::limits

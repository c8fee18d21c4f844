// Every bound of the system, and how the bounds relate. A number that bounds something shared by
// two folders is defined here and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbox::limits {

// --- chunks and fragments ---
// PHub uses 32 KiB. This is 512 bytes less, so that two chunks with their headers and tags fit one
// segmented datagram of 64 KiB (see kUdpPayloadMax). The kernel's work per byte is then halved.
inline constexpr uint32_t kChunkBytesDefault = 32 * 1024 - 512;
inline constexpr uint32_t kChunkBytesMin = 1024;
inline constexpr uint32_t kFragmentCountMax = 64;  // one bit each in a 64-bit mask

// Bytes of fragment payload for a path MTU of 1500, 9000, and 65536 (loopback).
inline constexpr uint32_t kFragmentBytesEthernet = 1408;
inline constexpr uint32_t kFragmentBytesJumbo = 8192;
inline constexpr uint32_t kFragmentBytesLoopback = 32 * 1024;
inline constexpr uint32_t kFragmentBytesMax = kFragmentBytesLoopback;
inline constexpr uint32_t kFragmentBytesMin = 512;  // for a path MTU of 640 (IPv6 needs 1280)

// The largest chunk is possible only with the largest fragments. Admission checks that a job's
// chunks have at most 64 fragments on the job's paths.
inline constexpr uint32_t kChunkBytesMax = kFragmentCountMax * kFragmentBytesMax;
// The default chunk has at most 64 fragments on every supported path.
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
// The memory of a box usually bounds its jobs first. This bounds its tables and the length of its
// HTTP pages.
inline constexpr uint32_t kJobsMax = 1024;
inline constexpr uint32_t kSlotRing = 2;  // rounds kept for each chunk, indexed by round & 1

// --- workers ---
inline constexpr uint32_t kMemoryRegionsMax = 1024;  // regions a worker has registered at once

// --- pipelines ---
inline constexpr uint32_t kPipelinesMax = 64;
inline constexpr uint32_t kSessionsPerPipelineMax = 4096;  // index: low 12 bits of an spi
static_assert((kSessionsPerPipelineMax & (kSessionsPerPipelineMax - 1)) == 0);
// A shard is one part of a job on one pipeline, or all of a job's chunks there if it has one part.
// Admission refuses a part whose pipelines have no place left. Memory is used up first, except by
// very small jobs. An idle turn of the loop looks at each shard, which bounds this number.
inline constexpr uint32_t kShardsPerPipelineMax = 1024;
static_assert(kShardsPerPipelineMax <= kSessionsPerPipelineMax);  // each shard has a session
inline constexpr uint32_t kBurstPackets = 64;

// --- credit ---
inline constexpr uint32_t kCreditUnitBytes = 512;
inline constexpr uint32_t kCreditBytesMax = 0xffffu * kCreditUnitBytes;

// --- control ---
inline constexpr uint32_t kControlMessageBytesMax = 1u << 20;
inline constexpr uint32_t kRssKeyBytesMax = 64;
inline constexpr uint32_t kRssTableEntriesMax = 2048;
inline constexpr uint32_t kRssTablesMax = 16;  // NICs of one box that workers steer by RSS
// A Session message has room for the largest chunk map and all RSS tables. A chunk and a table
// entry take one byte each, because pipelines and queues are fewer than 128. A pipeline, and the
// other fields of a table, take less than 64 bytes.
static_assert(kPipelinesMax < 128);
static_assert(kChunksPerJobMax + kRssTablesMax * (64 + kRssKeyBytesMax + kRssTableEntriesMax) +
                  kPipelinesMax * 64 + 1024 <=
              kControlMessageBytesMax);
inline constexpr uint32_t kControlConnectionsMax = 4096;
// Chunks in one RoundMap message. A chunk takes at most 8 bytes: 5 for its round, 3 for its entry
// in `give`.
inline constexpr uint32_t kRoundMapChunksMax = 65'536;
static_assert(kRoundMapChunksMax * 8 + 64 <= kControlMessageBytesMax);

// --- admin (HTTP) ---
inline constexpr uint32_t kAdminConnectionsMax = 128;
inline constexpr uint32_t kAdminHeaderBytesMax = 8192;  // request line and header fields
inline constexpr uint32_t kAdminBodyBytesMax = 4096;    // body of a POST
inline constexpr uint32_t kAdminTimeoutMs = 10'000;  // to read a request, and to write a response
// Ranks with metrics of their own, over all jobs of a box. Each rank has about a dozen time series.
inline constexpr uint32_t kMetricRanksMax = 1024;

// Events in the trace of one job's rounds, over all pipelines of a box: 8 MiB, and as much again
// once converted to text.
inline constexpr uint32_t kTraceEventsMax = 256 * 1024;
inline constexpr uint32_t kTraceSecondsMax = 600;

// --- ports and versions that clients and scripts rely on ---
inline constexpr uint16_t kAdminPort = 9540;
inline constexpr uint16_t kControlPort = 9541;
inline constexpr uint16_t kDataPortFirst = 9542;
inline constexpr uint8_t kWireVersion = 1;

}  // namespace pbox::limits

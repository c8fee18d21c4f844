#include "worker/membership/session.h"

#include <algorithm>

#include "base/version.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/zeros.h"

namespace pbox::worker {
namespace {

bool sizes_are_sane(const SessionSpec& spec) {
  return spec.fragment_bytes >= limits::kFragmentBytesMin &&
         spec.fragment_bytes <= limits::kFragmentBytesMax && spec.chunk_bytes > 0 &&
         spec.chunk_bytes <= limits::kChunkBytesMax &&
         wire::fragment_count(spec.chunk_bytes, spec.fragment_bytes) <= limits::kFragmentCountMax;
}

uint64_t chunk_count(const SessionSpec& spec, const std::vector<TensorSpec>& tensors) {
  uint64_t chunks = 0;
  for (const TensorSpec& tensor : tensors) {
    chunks +=
        wire::chunk_count(tensor.elements * wire::dtype_bytes(tensor.dtype), spec.chunk_bytes);
  }
  return chunks;
}

using RssTables = std::vector<std::shared_ptr<const nic::RssTable>>;

bool rss_is_sane(const proto::Session& session) {
  const auto& tables = session.rss_tables();
  return tables.size() <= static_cast<int>(limits::kRssTablesMax) &&
         std::all_of(tables.begin(), tables.end(), [](const proto::RssTable& table) {
           return !table.key().empty() && table.key().size() <= limits::kRssKeyBytesMax &&
                  table.queues_size() > 0 &&
                  table.queues_size() <= static_cast<int>(limits::kRssTableEntriesMax) &&
                  std::all_of(table.queues().begin(), table.queues().end(),
                              [](uint32_t queue) { return queue <= UINT16_MAX; });
         });
}

RssTables parse_rss(const proto::Session& session) {
  RssTables tables;
  for (const auto& message : session.rss_tables()) {
    nic::RssTable table;
    table.key.assign(message.key().begin(), message.key().end());
    table.queues.assign(message.queues().begin(), message.queues().end());
    tables.push_back(std::make_shared<const nic::RssTable>(std::move(table)));
  }
  return tables;
}

Result<SessionSpec::Pipeline> parse_pipeline(const proto::PipelineSession& message,
                                             const RssTables& tables, nic::Endpoint box) {
  if (message.affinity() >= nic::kQueueAffinityCount) {
    return Error{ErrorCode::kVersionMismatch,
                 "the box's pipeline at UDP port " + std::to_string(message.udp_port()) +
                     " has queue affinity " + std::to_string(message.affinity()) +
                     ", which this libpbox (" + kVersion +
                     ") does not know; upgrade libpbox to the box's release"};
  }
  if (!message.address().empty()) {
    const auto named = nic::parse_endpoint(message.address(), 0);
    if (!named) return named.error();
    box = *named;
  }
  box.port = static_cast<uint16_t>(message.udp_port());
  SessionSpec::Pipeline pipeline{message.spi(), message.credit_bytes(), box,
                                 static_cast<nic::QueueAffinity>(message.affinity()),
                                 message.queue()};
  if (pipeline.affinity == nic::QueueAffinity::kRssHash) {
    if (message.rss_table() >= tables.size()) {
      return Error{ErrorCode::kInternal, "the box's SESSION lacks the RSS table " +
                                             std::to_string(message.rss_table()) + " of " +
                                             to_string(box)};
    }
    pipeline.rss = tables[message.rss_table()];
  }
  return pipeline;
}

}  // namespace

Result<SessionSpec> parse_session(const proto::Session& session,
                                  const std::vector<TensorSpec>& tensors,
                                  const nic::Endpoint& box) {
  SessionSpec spec;
  spec.epoch = session.epoch();
  spec.generation = static_cast<uint16_t>(session.generation());
  spec.fragment_bytes = session.fragment_bytes();
  spec.chunk_bytes = session.chunk_bytes();
  spec.tag.payload_crc = session.payload_crc();
  spec.takes_zeros = session.protocol_version() >= wire::kZerosVersion;
  spec.chunk_pipeline.assign(session.chunk_pipeline().begin(), session.chunk_pipeline().end());
  const bool sane = sizes_are_sane(spec) && rss_is_sane(session) &&
                    chunk_count(spec, tensors) == spec.chunk_pipeline.size() &&
                    std::all_of(spec.chunk_pipeline.begin(), spec.chunk_pipeline.end(),
                                [&](uint8_t index) { return index < session.pipelines_size(); });
  if (!sane)
    return Error{ErrorCode::kInternal,
                 "the box's SESSION does not match this worker's tensors; use the same release on "
                 "both sides"};
  const RssTables tables = parse_rss(session);
  for (const auto& message : session.pipelines()) {
    auto pipeline = parse_pipeline(message, tables, box);
    if (!pipeline) return pipeline.error();
    spec.pipelines.push_back(std::move(*pipeline));
  }
  return spec;
}

}  // namespace pbox::worker

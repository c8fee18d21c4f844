#include "tests/unit/worker/protocol/shim.h"

#include <bit>
#include <catch2/catch.hpp>

#include "nic/wire/chunk_layout.h"

namespace pbox::test {
namespace {

worker::SessionSpec session_of(const ShimOptions& options) {
  worker::SessionSpec session;
  session.epoch = 5;
  session.generation = 6;
  session.fragment_bytes = kFragmentBytes;
  session.chunk_bytes = kChunkBytes;
  session.tag = {.payload_crc = true};
  session.window_bytes = options.window_bytes;
  session.delivery = options.delivery;
  session.ignores_results = options.ignores_results;
  session.caller_keeps_results = options.caller_keeps_results;
  session.optimizes = options.optimizes;
  session.holds_rounds = options.holds_rounds;
  session.has_upper_box = options.has_upper_box;
  session.takes_zeros = options.takes_zeros;
  session.pipelines.push_back({kSpi, options.credit_bytes, *nic::parse_endpoint("10.0.0.1", 9542)});
  if (options.seal) session.pipelines.back().seal = options.seal;
  session.pipelines.back().path = options.path ? options.path : short_path(session.rto_floor_ns);
  for (uint64_t packet = 0; packet < options.packets_before; ++packet) {
    nic::TxPacket probe;
    session.pipelines.back().seal->seal(session.tag, probe, nullptr);
  }
  for (const uint64_t chunks : options.tensor_chunks) {
    session.chunk_pipeline.insert(session.chunk_pipeline.end(), chunks, 0);
  }
  if (!options.chunk_pipeline.empty()) {
    session.chunk_pipeline = options.chunk_pipeline;
    session.pipelines.push_back(session.pipelines[0]);
    session.pipelines[1].spi += 1;
    session.pipelines[1].path = short_path(session.rto_floor_ns);
  }
  session.open_rounds = options.open_rounds;
  session.sync = options.sync;
  session.learning_rate = options.learning_rate;
  session.gradient_scale = options.gradient_scale;
  return session;
}

std::vector<worker::TensorSpec> tensors_of(const ShimOptions& options) {
  std::vector<worker::TensorSpec> tensors;
  for (const uint64_t chunks : options.tensor_chunks) {
    tensors.push_back({.name = "t",
                       .elements = chunks * kChunkBytes / sizeof(float),
                       .row_elements = options.row_elements,
                       .compression = options.compression});
  }
  if (options.has_choice) {
    tensors.at(1).is_form = true;
    tensors.at(2).is_votes = true;
  }
  return tensors;
}

NumaArena shadow_of(const ShimOptions& options) {
  const auto tensors = tensors_of(options);
  const uint64_t bytes = options.has_shadow
                             ? worker::shadow_bytes(session_of(options), tensors, options.shadows)
                             : worker::cache_bytes(session_of(options), tensors);
  if (bytes == 0) return {};
  auto arena = NumaArena::create(bytes, kAnyNumaNode, Hugepages::kNever);
  REQUIRE(arena.ok());
  return std::move(*arena);
}

}  // namespace

std::shared_ptr<worker::SendPath> short_path(uint64_t slack_ns) {
  auto window = std::make_shared<worker::CongestionWindow>(slack_ns);
  window->arrive(kStartNs, 1, true, kStartNs);
  return std::make_shared<worker::SendPath>(slack_ns, std::move(window));
}

Shim::Shim(const ShimOptions& options)
    : session(session_of(options)),
      owned_(std::make_unique<worker::Exchange>(session, tensors_of(options), shadow_of(options),
                                                options.shadows)),
      exchange(*owned_),
      credit_bytes(options.credit_bytes) {
  for (const uint64_t chunks : options.tensor_chunks) {
    buffers_.emplace_back(chunks * kChunkBytes / sizeof(float));
    for (auto& kept : kept_) kept.emplace_back(chunks * kChunkBytes / sizeof(float));
  }
}

Status Shim::resume(const std::vector<uint32_t>& open_rounds, const std::vector<uint32_t>& give) {
  exchange.suspend();
  ++session.epoch;
  session.pipelines[0].spi += 1u << 20;
  session.open_rounds = open_rounds;
  session.chunks_to_restore = give;
  return exchange.resume(session);
}

void Shim::start(uint32_t tensor, float value, int32_t priority) {
  auto& buffer = buffers_[tensor];
  std::fill(buffer.begin(), buffer.end(), value);
  auto* data = reinterpret_cast<std::byte*>(buffer.data());
  const uint32_t slot = session.optimizes ? exchange.round(tensor) & 1 : 0;
  auto* kept = reinterpret_cast<std::byte*>(kept_[slot][tensor].data());
  exchange.start({.tensor = tensor,
                  .input = data,
                  .output = session.caller_keeps_results ? kept : data,
                  .priority = priority});
}

std::vector<Pushed> Shim::take_burst() {
  std::vector<Pushed> taken;
  uint32_t pipeline = 0;
  auto packets = exchange.to_send(pipeline, now_ns);
  if (packets.empty() && session.pipelines.size() > 1)
    packets = exchange.to_send(++pipeline, now_ns);
  for (const nic::TxPacket& packet : packets) {
    const wire::Tag tag = wire::make_tag({.payload_crc = true}, packet.header, packet.payload);
    REQUIRE((packet.tag == tag));
    taken.push_back({packet.header, {}});
    taken.back().payload.assign(packet.payload, packet.payload + packet.header.payload_bytes);
  }
  exchange.sent(pipeline, packets.size());
  everything.insert(everything.end(), taken.begin(), taken.end());
  return taken;
}

std::vector<Pushed> Shim::take_all() {
  std::vector<Pushed> taken;
  for (auto burst = take_burst(); !burst.empty(); burst = take_burst()) {
    taken.insert(taken.end(), burst.begin(), burst.end());
  }
  return taken;
}

std::vector<Pushed> Shim::take_all(wire::PacketType type) {
  auto taken = take_all();
  std::erase_if(taken, [type](const Pushed& packet) { return packet.header.type() != type; });
  return taken;
}

Answer Shim::result(uint32_t chunk, uint32_t round, uint32_t fragment, float value) {
  Answer answer;
  answer.header.set_type(wire::PacketType::kResult);
  answer.header.payload_bytes = kFragmentBytes;
  const bool is_known = chunk < session.chunk_pipeline.size();
  const size_t pipeline = is_known ? session.chunk_pipeline[chunk] : 0;
  answer.header.spi = session.pipelines[pipeline].spi | wire::kSpiToWorker;
  answer.header.packet_number = next_packet_number_++;
  answer.header.epoch = session.epoch;
  answer.header.generation = session.generation;
  answer.header.chunk = chunk;
  answer.header.round = round;
  answer.header.fragment = static_cast<uint16_t>(fragment);
  answer.header.credit = static_cast<uint16_t>(credit_bytes / limits::kCreditUnitBytes);
  const std::vector<float> values(kFragmentBytes / sizeof(float), value);
  answer.payload.resize(kFragmentBytes);
  std::memcpy(answer.payload.data(), values.data(), kFragmentBytes);
  return answer;
}

Answer Shim::zeros(uint32_t chunk, uint32_t round, uint64_t mask) {
  Answer answer = result(chunk, round, static_cast<uint32_t>(std::countr_zero(mask)), 0);
  answer.header.set_type(wire::PacketType::kZeros);
  answer.header.payload_bytes = sizeof(mask);
  answer.payload.resize(sizeof(mask));
  std::memcpy(answer.payload.data(), &mask, sizeof(mask));
  return answer;
}

Answer Shim::relaxed_result(uint32_t chunk, uint32_t clock, uint32_t applied, uint32_t fragment,
                            float value) {
  Answer answer = result(chunk, clock - 1, fragment, value);
  answer.header.timestamp_us = applied;
  return answer;
}

Answer Shim::status(uint32_t chunk, uint32_t round, uint64_t received_mask,
                    uint16_t missing_workers, uint16_t first_missing_rank) {
  Answer answer = result(chunk, round, 0, 0);
  answer.header.set_type(wire::PacketType::kStatus);
  answer.header.timestamp_us = static_cast<uint32_t>(now_ns / 1000);  // was asked just now
  const wire::StatusPayload status{.received_mask = received_mask,
                                   .finished_round = round,
                                   .missing_workers = missing_workers,
                                   .first_missing_rank = first_missing_rank};
  answer.payload.resize(sizeof(status));
  std::memcpy(answer.payload.data(), &status, sizeof(status));
  answer.header.payload_bytes = sizeof(status);
  return answer;
}

Answer Shim::announcement(uint32_t chunk, uint32_t round) {
  Answer answer = status(chunk, round, wire::full_mask(kChunkBytes / kFragmentBytes));
  const uint32_t finished_round = round + 1;
  std::memcpy(answer.payload.data() + offsetof(wire::StatusPayload, finished_round),
              &finished_round, sizeof(finished_round));
  return answer;
}

void Shim::deliver(const Answer& answer) {
  const auto tag = wire::make_tag({.payload_crc = true}, answer.header, answer.payload.data());
  std::vector<std::byte> bytes(sizeof(wire::Header));
  std::memcpy(bytes.data(), &answer.header, sizeof(wire::Header));
  bytes.insert(bytes.end(), answer.payload.begin(), answer.payload.end());
  bytes.insert(bytes.end(), tag.begin(), tag.end());
  const nic::RxPacket packet{bytes.data(), static_cast<uint32_t>(bytes.size()), {}};
  const bool is_second = session.pipelines.size() > 1 &&
                         answer.header.spi == (session.pipelines[1].spi | wire::kSpiToWorker);
  exchange.on_burst(is_second ? 1 : 0, {&packet, 1}, now_ns);
}

void Shim::deliver_result(uint32_t chunk, uint32_t round, float value) {
  for (uint32_t fragment = 0; fragment < kChunkBytes / kFragmentBytes; ++fragment) {
    deliver(result(chunk, round, fragment, value));
  }
}

void Shim::deliver_relaxed(uint32_t chunk, uint32_t clock, uint32_t applied, float value) {
  for (uint32_t fragment = 0; fragment < kChunkBytes / kFragmentBytes; ++fragment) {
    deliver(relaxed_result(chunk, clock, applied, fragment, value));
  }
}

uint64_t Shim::expire() {
  uint64_t waited_ns = 0;
  do {  // a deadline is a lower bound, so the timer may find nothing to do yet
    const uint64_t deadline_ns = exchange.next_deadline_ns();
    REQUIRE(deadline_ns != UINT64_MAX);
    const uint64_t step_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    now_ns += step_ns;
    waited_ns += step_ns;
    exchange.on_timer(now_ns);
  } while (exchange.to_send(0, now_ns).empty());
  return waited_ns;
}

}  // namespace pbox::test

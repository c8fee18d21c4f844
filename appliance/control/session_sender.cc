#include "appliance/control/session_sender.h"

#include <algorithm>

#include "base/clock.h"
#include "nic/socket/receive_room.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

// A larger window gains nothing on any path that a socket serves, and costs cache.
constexpr uint32_t kWindowBytesAuto = 1u << 20;

// Returns, for the log, "; pipeline 0: spi 1509949440, UDP port 9542, credit 1048576 bytes;
// pipeline 1: ..."
std::string describe(const proto::Session& session) {
  std::string text;
  for (int index = 0; index < session.pipelines_size(); ++index) {
    const auto& pipeline = session.pipelines(index);
    text += "; pipeline " + std::to_string(index) + ": spi " + std::to_string(pipeline.spi()) +
            ", UDP port " + std::to_string(pipeline.udp_port()) + ", credit " +
            std::to_string(pipeline.credit_bytes()) + " bytes";
  }
  return text;
}

// Returns the open rounds and `give` in pieces that fit a message. `give`: the chunks whose results
// the worker must give back.
std::vector<proto::BoxMessage> round_maps(const std::vector<uint32_t>& rounds,
                                          const std::vector<uint32_t>& give) {
  std::vector<proto::BoxMessage> messages;
  auto next_give = give.begin();
  for (size_t first = 0; first < rounds.size(); first += limits::kRoundMapChunksMax) {
    const size_t end = std::min(rounds.size(), first + limits::kRoundMapChunksMax);
    proto::RoundMap& map = *messages.emplace_back().mutable_rounds();
    map.set_first_chunk(static_cast<uint32_t>(first));
    map.mutable_rounds()->Add(rounds.begin() + static_cast<ptrdiff_t>(first),
                              rounds.begin() + static_cast<ptrdiff_t>(end));
    for (; next_give != give.end() && *next_give < end; ++next_give) map.add_give(*next_give);
    map.set_last(end == rounds.size());
  }
  return messages;
}

}  // namespace

uint32_t receivable_bytes(const PipelineInfo& info, uint32_t fragment_bytes) {
  if (info.receive_slots == 0) {
    return nic::receivable_bytes(info.receive_buffer_bytes, fragment_bytes);
  }
  const uint64_t in_slots = uint64_t{info.receive_slots} * fragment_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(info.receive_buffer_bytes, in_slots));
}

uint32_t credit_share(uint32_t receive_buffer_bytes, std::span<const TenantDemand> tenants,
                      const TenantDemand& own, uint64_t window_bytes) {
  const uint64_t usable_bytes = uint64_t{receive_buffer_bytes} * 3 / 4;
  const auto receivable = static_cast<double>(usable_bytes);
  double weights = 0;
  for (const TenantDemand& tenant : tenants) weights += tenant.weight;
  // The fraction of its share that every tenant can use.
  double usable = 1;
  for (const TenantDemand& tenant : tenants) {
    const double share = receivable * tenant.weight / weights;
    usable = std::min(usable, static_cast<double>(tenant.window_bytes) / share);
  }
  const double of_tenant = usable * receivable * own.weight / weights;
  const double of_session = of_tenant * static_cast<double>(window_bytes) /
                            static_cast<double>(std::max<uint64_t>(1, own.window_bytes));
  const auto credit = static_cast<uint64_t>(
      std::min({of_session, static_cast<double>(window_bytes), double{limits::kCreditBytesMax}}));
  return static_cast<uint32_t>(std::max<uint64_t>(credit / limits::kCreditUnitBytes, 1) *
                               limits::kCreditUnitBytes);
}

void SessionSender::send_all(Job& job, bool recovers) {
  const bool differs_by_rank = recovers && job.spec().is_relaxed();
  auto rounds = recovers ? job.shards().open_rounds(host_) : std::vector<uint32_t>();
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    Member& member = job.members()[rank];
    if (member.state != Member::State::kJoined) continue;
    if (!member.resumes) member.barrier_sequence = job.barrier_released();
    if (differs_by_rank) rounds = job.shards().open_rounds(host_, rank);
    send(job, rank, rounds);
    std::vector<uint32_t>().swap(member.consumed);
  }
}

void SessionSender::send(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds) {
  PBOX_CHECK(job.running());  // without shards there are no sessions
  const Member& member = job.members()[rank];
  ControlConnections& connections = context_.connections;
  // The session tells the worker how often it must be heard, so its silence counts from here.
  if (Connection* connection = connections.find(member.connection)) {
    connection->heard_ns = context_.now_ns;
  }
  if (job.priorities_set()) {  // before the session, so that no operation starts without them
    proto::BoxMessage priorities;
    *priorities.mutable_set_priorities() = *job.priorities_set();
    connections.send(member.connection, std::move(priorities));
  }
  proto::BoxMessage message = session_for(job, rank, !open_rounds.empty());
  context_.note(RegistryEvent::Severity::kDebug, "session_installed",
                job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer + ")" +
                    describe(message.session()),
                job.spec().name);
  connections.send(member.connection, std::move(message));
  std::vector<uint32_t> give;
  std::vector<uint32_t> rounds = open_rounds;
  if (member.resumes) {
    give = copies_owed(job.starts(), rank, open_rounds);
  } else if (job.spec().mode == pipeline::Mode::kOptimize) {
    rounds = rounds_for_newcomer(job.starts(), open_rounds);
  }
  for (auto& piece : round_maps(rounds, give)) connections.send(member.connection, piece);
}

proto::BoxMessage SessionSender::session_for(const Job& job, uint32_t rank, bool has_rounds) const {
  const RegistryOptions& options = context_.options;
  proto::BoxMessage message;
  proto::Session& session = *message.mutable_session();
  PBOX_CHECK(rank < job.members().size());
  session.set_protocol_version(job.members()[rank].protocol_version);
  session.set_box(options.box_name);
  session.set_payload_crc(options.payload_crc);
  if (options.keys != nullptr) {
    session.set_suite(static_cast<uint32_t>(options.keys->policy().suite));
  }
  session.set_heartbeat_interval_ms(options.heartbeat_interval_ms);
  session.set_dead_after_ms(static_cast<uint32_t>(options.dead_after_ns / kNanosPerMilli));
  session.set_has_rounds(has_rounds);
  session.set_gives_verdicts(job.spec().needs_verdicts());
  session.set_optimizer_restarted(job.has_restarted_optimizer());
  if (const CopyName copy = job.copy(); !copy.job.empty()) {
    session.mutable_copy()->set_box(copy.box);
    session.mutable_copy()->set_job(copy.job);
  }
  job.describe(rank, host_, session);
  for (int index = 0; index < session.pipelines_size(); ++index) {
    const uint32_t pipeline = job.shards().pipelines()[static_cast<size_t>(index)];
    session.mutable_pipelines(index)->set_credit_bytes(job.shards().credit_on(pipeline));
  }
  return message;
}

void SessionSender::share_credit() {
  const std::vector<SharedPipeline> pipelines = shared_pipelines();
  for (const auto& [part, job] : context_.jobs) {
    if (!job->running()) continue;
    const std::string tenant(wire::tenant_of(part.first));
    for (const uint32_t pipeline : job->shards().pipelines()) {
      const SharedPipeline& shared = pipelines[pipeline];
      const TenantDemand& own = shared.tenants.at(tenant);
      const uint32_t credit =
          credit_share(receivable_bytes(host_.info(pipeline), job->fragment_bytes()),
                       shared.demands, own, window_bytes() / shared.parts.at(part.first));
      job->shards().set_credit(host_, pipeline, credit, own.weight);
    }
  }
}

// The parts of one job on a pipeline share one window, because they share one path.
std::vector<SessionSender::SharedPipeline> SessionSender::shared_pipelines() const {
  std::vector<SharedPipeline> pipelines(host_.count());
  for (const auto& [part, job] : context_.jobs) {
    if (!job->running()) continue;
    for (const uint32_t pipeline : job->shards().pipelines()) {
      ++pipelines[pipeline].parts[part.first];
    }
  }
  for (const auto& [part, job] : context_.jobs) {
    if (!job->running()) continue;
    const std::string tenant(wire::tenant_of(part.first));
    const uint64_t sessions =
        job->members().size() - job->members().count(Member::State::kExcluded);
    for (const uint32_t pipeline : job->shards().pipelines()) {
      SharedPipeline& shared = pipelines[pipeline];
      TenantDemand& demand = shared.tenants[tenant];
      demand.weight = context_.options.tenants.of(tenant).weight;
      demand.window_bytes += window_bytes() / shared.parts.at(part.first) * sessions;
    }
  }
  for (SharedPipeline& shared : pipelines) {
    for (const auto& [name, demand] : shared.tenants) shared.demands.push_back(demand);
  }
  return pipelines;
}

uint64_t SessionSender::window_bytes() const {
  return context_.options.window_bytes == 0 ? kWindowBytesAuto : context_.options.window_bytes;
}

}  // namespace pbox::control

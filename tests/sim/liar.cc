#include "tests/sim/liar.h"

#include <utility>

#include "nic/wire/control_frame.h"
#include "nic/wire/control_versions.h"
#include "tests/sim/worker.h"
#include "worker/membership/membership.h"

namespace pbox::sim {
namespace {

constexpr uint32_t kLies = 12;
constexpr uint64_t kPauseMaxNs = 2 * kNanosPerMilli;
// At the least for which boxes look at other evidence than their own.
constexpr uint32_t kLostForMs = 1'500;
static_assert(kLiarBeginsAfterNs > 2 * kLostForMs * kNanosPerMilli);

}  // namespace

Liar::Liar(Rack& rack, std::function<const Worker&(uint64_t)> choose)
    : rack_(rack),
      choose_(std::move(choose)),
      host_(client_of(rack.options, 0) - 1),
      rng_(rack.options.seed ^ 0x6c696172ull),
      left_(kLies) {
  rack.control.attach(host_, *this);
}

void Liar::start() {
  rack_.queue.after(1 + rng_.below(kPauseMaxNs), [this] { lie(); });
}

void Liar::lie() {
  hang_up();
  if (left_-- == 0) return;
  const Worker& worker = choose_(rng_.next());
  const auto owner = rack_.cluster.owner(worker.job().options);
  if (owner && worker.joined() && !worker.over()) {
    const auto others = rack_.options.boxes - 1;
    const HostId asked = (*owner + 1 + static_cast<HostId>(rng_.below(others))) % (others + 1);
    proto::AskPartMap& question = *lie_.mutable_ask_part_map();
    question = worker::part_map_request(worker.job().name);
    question.set_lost_box(name_of_box(*owner));
    question.set_lost_for_ms(kLostForMs);
    question.set_rank(worker.rank());
    wire::state_versions(lie_);
    connection_ = rack_.control.connect(host_, asked);
  }
  start();
}

void Liar::hang_up() {
  if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), host_);
}

void Liar::on_connected(ConnectionId id) {
  if (id != connection_) return;
  rack_.counts.add(Fault::kLie);
  rack_.control.send(id, host_, wire::frame(lie_)->substr(wire::kControlLengthBytes));
}

void Liar::on_control_message(ConnectionId id, const std::string&) {
  if (id == connection_) hang_up();
}

void Liar::on_closed(ConnectionId id, const std::string&) {
  if (id == connection_) connection_ = 0;
}

}  // namespace pbox::sim

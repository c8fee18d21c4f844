// Handles the reports of pipelines and their ports while the box runs.

#include "appliance/appliance.h"
#include "base/clock.h"
#include "base/event.h"

namespace pbox::appliance {
namespace {

constexpr std::chrono::milliseconds kEventLookInterval{250};

}  // namespace

void Appliance::look_for_port_events() {
  port_event_timer_.expires_after(kEventLookInterval);
  port_event_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& line : pipelines_->take_port_events()) {
      log(EventLog::Level::kWarning, "port_event", line);
    }
    look_for_port_events();
  });
}

// The registry's tick handles the reports, and whatever else is due.
void Appliance::wait_for_step_reports() {
  step_reports_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& error) {
                             if (error) return;
                             clear_event(step_reports_.native_handle());
                             registry_->on_tick(monotonic_ns());
                             control_->flush();
                             wait_for_step_reports();
                           });
}

}  // namespace pbox::appliance

// Logs the events that the ports' devices report while the box runs.
#include "appliance/appliance.h"

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

}  // namespace pbox::appliance

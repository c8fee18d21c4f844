#include "appliance/relay/box_upstream.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/relay/box_relay.h"

namespace pbox::appliance {

BoxUpstream::BoxUpstream(boost::asio::io_context& context, config::Upstream settings,
                         std::function<void()> on_done)
    : context_(context), settings_(std::move(settings)), on_done_(std::move(on_done)) {}

std::unique_ptr<Relay> BoxUpstream::join(RelaySpec spec, std::function<void(Status)> on_change) {
  auto tell = [&context = context_, on_change = std::move(on_change),
               on_done = on_done_](const Status& status) {
    boost::asio::post(context, [on_change, on_done, status] {
      on_change(status);
      on_done();
    });
  };
  return std::make_unique<BoxRelay>(context_, settings_, std::move(spec), std::move(tell));
}

}  // namespace pbox::appliance

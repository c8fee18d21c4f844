#include "appliance/relay/box_upstream.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/relay/box_relay.h"

namespace pbox::relay {
namespace {

// Returns a callback that runs `on_change` and then `on_done` on the control thread.
std::function<void(const Status&)> posted(boost::asio::io_context& context,
                                          std::function<void(Status)> on_change,
                                          const std::function<void()>& on_done) {
  return [&context, on_change = std::move(on_change), on_done](const Status& status) {
    boost::asio::post(context, [on_change, on_done, status] {
      on_change(status);
      on_done();
    });
  };
}

}  // namespace

BoxUpstream::BoxUpstream(boost::asio::io_context& context, config::Upstream settings,
                         std::string keys, std::function<void()> on_done)
    : context_(context),
      settings_(std::move(settings)),
      keys_(std::move(keys)),
      on_done_(std::move(on_done)) {}

std::unique_ptr<control::Relay> BoxUpstream::join(control::RelaySpec spec,
                                                  std::function<void(Status)> on_change) {
  return std::make_unique<BoxRelay>(context_, settings_, keys_, std::move(spec),
                                    posted(context_, std::move(on_change), on_done_));
}

std::unique_ptr<control::Relay> BoxBackups::join(const std::string& address,
                                                 control::RelaySpec spec,
                                                 std::function<void(Status)> on_change) {
  config::Upstream settings;
  settings.box = address;
  settings.rank = 0;
  settings.world_size = 1;
  return std::make_unique<BoxRelay>(context_, settings, keys_, std::move(spec),
                                    posted(context_, std::move(on_change), on_done_));
}

}  // namespace pbox::relay

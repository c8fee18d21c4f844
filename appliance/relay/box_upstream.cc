#include "appliance/relay/box_upstream.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/relay/box_relay.h"

namespace pbox::relay {
namespace {

// Makes a relay whose reports run on the control thread, each followed by `on_done`.
std::unique_ptr<BoxRelay> make_relay(boost::asio::io_context& context,
                                     const config::Upstream& settings, const std::string& keys,
                                     control::RelaySpec spec,
                                     const std::function<void(Status)>& on_change,
                                     const std::function<void()>& on_done) {
  const auto post = [&context, on_done](std::function<void()> function) {
    boost::asio::post(context, [function = std::move(function), on_done] {
      function();
      on_done();
    });
  };
  const auto report = [post, on_change](const Status& status) {
    post([on_change, status] { on_change(status); });
  };
  return std::make_unique<BoxRelay>(context, settings, keys, std::move(spec), report, post);
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
  return make_relay(context_, settings_, keys_, std::move(spec), on_change, on_done_);
}

std::unique_ptr<control::Relay> BoxBackups::join(const std::string& address,
                                                 control::RelaySpec spec,
                                                 std::function<void(Status)> on_change) {
  config::Upstream settings;
  settings.box = address;
  settings.rank = 0;
  settings.world_size = 1;
  return make_relay(context_, settings, keys_, std::move(spec), on_change, on_done_);
}

}  // namespace pbox::relay

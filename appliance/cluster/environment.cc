#include "appliance/cluster/environment.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <ctime>

#include "base/check.h"

namespace pbox::cluster {
namespace {

boost::asio::io_context& context_of(boost::asio::execution_context::service& service) {
  return static_cast<boost::asio::io_context&>(service.context());
}

}  // namespace

boost::asio::execution_context::id Environment::id;

Environment& Environment::of(boost::asio::io_context& context) {
  return boost::asio::use_service<Environment>(context);
}

Environment::Environment(boost::asio::execution_context& context)
    : boost::asio::execution_context::service(context) {}

uint64_t Environment::unix_seconds() const {
  return static_cast<uint64_t>(std::time(nullptr));
}

void Environment::post(std::function<void()> function) {
  boost::asio::post(context_of(*this), std::move(function));
}

std::shared_ptr<void> Environment::after(Clock::duration wait, std::function<void()> function) {
  PBOX_CHECK(function != nullptr);
  auto timer = std::make_shared<boost::asio::steady_timer>(context_of(*this), wait);
  timer->async_wait([function = std::move(function)](const boost::system::error_code& cancelled) {
    if (!cancelled) function();
  });
  return timer;
}

}  // namespace pbox::cluster

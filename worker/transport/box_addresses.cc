#include "worker/transport/box_addresses.h"

#include <netdb.h>

#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/event.h"
#include "base/thread.h"
#include "worker/process/fork_guard.h"
#include "worker/process/io_thread.h"

namespace pbox::worker {
namespace {

// At this number, all names that are not being resolved are forgotten, so that names of boxes that
// have left the cluster do not pile up.
constexpr size_t kNamesMax = 1024;

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> split(const std::string& box) {
  const size_t colon = box.rfind(':');
  const Error malformed{ErrorCode::kInvalidArgument,
                        "box '" + box + "' is not understood; write HOST:PORT or [IPV6]:PORT"};
  if (colon == std::string::npos || colon == 0 || colon + 1 == box.size()) return malformed;
  HostPort parts{box.substr(0, colon), box.substr(colon + 1)};
  if (parts.host.front() == '[') {
    if (parts.host.back() != ']') return malformed;
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return malformed;
  }
  return parts;
}

Result<BoxAddresses::Addresses> look_up(const std::string& box, int flags) {
  const auto parts = split(box);
  if (!parts) return parts.error();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (failed != 0) {
    return Error{ErrorCode::kUnavailable,
                 "cannot resolve box '" + box + "': " + gai_strerror(failed)};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  BoxAddresses::Addresses addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    BoxAddresses::Address& address = addresses.emplace_back();
    address.length = entry->ai_addrlen;
    PBOX_CHECK(entry->ai_addrlen <= sizeof(address.address));
    std::memcpy(&address.address, entry->ai_addr, entry->ai_addrlen);
  }
  return addresses;
}

}  // namespace

struct BoxAddresses::State {
  struct Name {
    std::optional<Addresses> addresses;
    std::optional<Error> failure;  // the last resolution's, until find() has returned it
    bool is_being_resolved = false;
  };

  explicit State(Resolve resolve_in) : resolve(std::move(resolve_in)) {
    if (auto event = create_own_event()) ended = std::move(*event);
  }
  ~State() {
    if (ended.ok()) forget_in_child(ended.get());
  }

  // Call both with the mutex held.
  void begin(const std::shared_ptr<State>& self, const std::string& box);
  Name& name_of(const std::string& box);

  const Resolve resolve;
  Descriptor ended;  // event that is set when a name has been resolved
  std::mutex mutex;
  std::map<std::string, Name> names;
};

BoxAddresses::State::Name& BoxAddresses::State::name_of(const std::string& box) {
  if (names.size() >= kNamesMax && !names.contains(box)) {
    std::erase_if(names, [](const auto& entry) { return !entry.second.is_being_resolved; });
  }
  return names[box];
}

void BoxAddresses::State::begin(const std::shared_ptr<State>& self, const std::string& box) {
  PBOX_CHECK(self.get() == this);
  Name& name = names[box];
  if (name.is_being_resolved) return;
  auto thread = start_thread("resolve box '" + box + "'", [self, box] {
    become_library_thread("pbox-resolve");
    auto found = self->resolve(box);
    {
      const std::lock_guard lock(self->mutex);
      Name& resolved = self->names[box];
      resolved.is_being_resolved = false;
      if (found) {
        resolved.addresses = std::move(*found);
        resolved.failure.reset();
      } else {
        resolved.failure = found.error();
      }
    }
    set_event(self->ended.get());
  });
  if (!thread) {
    name.failure = thread.error();
    return;
  }
  thread->detach();
  name.is_being_resolved = true;
}

BoxAddresses::BoxAddresses(Resolve resolve) : state_(std::make_shared<State>(std::move(resolve))) {}

std::optional<Result<BoxAddresses::Addresses>> BoxAddresses::find(const std::string& box) {
  clear_event(state_->ended.get());
  if (auto numeric = look_up(box, AI_NUMERICHOST | AI_NUMERICSERV);
      numeric || numeric.error().code == ErrorCode::kInvalidArgument) {
    return numeric;
  }
  const std::lock_guard lock(state_->mutex);
  State::Name& name = state_->name_of(box);
  if (name.addresses) return Result<Addresses>(*name.addresses);
  if (!name.is_being_resolved && !name.failure) state_->begin(state_, box);
  if (!name.failure) return std::nullopt;
  const Error failure = *std::exchange(name.failure, std::nullopt);
  return Result<Addresses>(failure);
}

void BoxAddresses::refresh(const std::string& box) {
  if (look_up(box, AI_NUMERICHOST | AI_NUMERICSERV)) return;
  const std::lock_guard lock(state_->mutex);
  State::Name& name = state_->name_of(box);
  name.failure.reset();
  state_->begin(state_, box);
}

int BoxAddresses::fd() const {
  return state_->ended.get();
}

Result<BoxAddresses::Addresses> BoxAddresses::resolve_by_system(const std::string& box) {
  return look_up(box, 0);
}

}  // namespace pbox::worker

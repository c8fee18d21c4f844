// The admin server of a live box: over its UNIX socket, and as other users.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// A folder that other users may enter, with a copy of pboxctl that they may run.
class OpenFolder : public TemporaryFolder {
 public:
  OpenFolder() {
    std::filesystem::copy_file(PBOX_CTL_PATH, pboxctl());
    for (const std::string& file : {path(), pboxctl()}) must_run({"chmod", "755", file});
  }
  std::string pboxctl() const { return path() + "/pboxctl"; }
  std::string socket() const { return path() + "/admin.sock"; }
};

// Runs a program as user and group 65534, nobody, and in these groups too.
Output run_as_nobody(const Arguments& words, const std::string& groups = "") {
  Arguments all = {"--reuid=65534", "--regid=65534",
                   groups.empty() ? "--clear-groups" : "--groups=" + groups};
  all.insert(all.end(), words.begin(), words.end());
  return run("setpriv", all);
}

Arguments curl(const std::string& socket, const std::string& path) {
  return {"curl", "-sS", "--max-time", "20", "--unix-socket", socket, "http://localhost" + path};
}

// The keys of box `a`, whose certificate is for `a` and 127.0.0.1 too.
class BoxKeys : public KeyFolder {
 public:
  explicit BoxKeys(const tls::KeyPair& signer) : KeyFolder(signer, order(), signer.certificate) {}

 private:
  static tls::CertificateOrder order() {
    auto order = KeyFolder::order("pbox://rack/box/a");
    order.hosts = {"a", "127.0.0.1"};
    return order;
  }
};

Arguments keyed(const KeyFolder& keys, const Arguments& more = {}) {
  Arguments arguments = {"--box.name=a", "--security.keys=" + keys.path()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Runs curl with the keys in `folder`, as a browser or Prometheus would use them. Its output ends
// with the HTTP status.
Output https(const Daemon& daemon, const std::string& folder, const std::string& path,
             const Arguments& more = {}) {
  Arguments words = {"-sS",
                     "--max-time",
                     "20",
                     "--cacert",
                     folder + "/ca.pem",
                     "--cert",
                     folder + "/cert.pem",
                     "--key",
                     folder + "/key.pem",
                     "-w",
                     "\n%{http_code}\n",
                     "https://" + daemon.admin() + path};
  words.insert(words.end(), more.begin(), more.end());
  return run("curl", words);
}

const Arguments kDrain = {"-H", "Content-Type: application/json", "-d", "{\"draining\": true}"};
constexpr char kDrainPath[] = "/api/v1/boxes/a/drain";

}  // namespace

TEST_CASE("pboxctl operates a box over its UNIX socket, and the socket goes with the box") {
  const OpenFolder folder;
  Daemon daemon({"--admin.socket=" + folder.socket()});
  const std::string where = "unix:" + folder.socket();
  const Output boxes = run(PBOX_CTL_PATH, {"boxes", "--admin", where, "--output", "json"});
  CHECK(boxes.status == 0);
  CHECK_THAT(boxes.text, Contains("\"boxes\""));
  // The request was allowed, because the reason of this refusal is that the box is alone.
  const Output drained = run(PBOX_CTL_PATH, {"drain", "b", "--admin", where});
  CHECK(drained.status == 1);
  CHECK_THAT(drained.errors, Contains(where) && Contains("this box is alone"));

  daemon.program().signal(SIGTERM);
  CHECK(daemon.program().wait_exit(kDeadlineMs) == 0);
  CHECK_FALSE(std::filesystem::exists(folder.socket()));
  const Output gone = run(PBOX_CTL_PATH, {"boxes", "--admin", where});
  CHECK(gone.status == 1);
  CHECK_THAT(gone.errors, Contains("No such file") && Contains("socket="));
}

TEST_CASE("a second box does not take the socket, and a box that was killed gives it up") {
  const OpenFolder folder;
  const std::string option = "--admin.socket=" + folder.socket();
  auto first = std::make_unique<Daemon>(Arguments{option});
  const Output second = run(daemon_path(), daemon_arguments({option}));
  CHECK(second.status == 1);
  CHECK_THAT(second.errors, Contains(folder.socket()) && Contains("another pboxd serves it"));
  CHECK(run(PBOX_CTL_PATH, {"boxes", "--admin", "unix:" + folder.socket()}).status == 0);
  first->program().signal(SIGKILL);
  CHECK(first->program().wait_exit(kDeadlineMs) == 128 + SIGKILL);
  REQUIRE(std::filesystem::exists(folder.socket()));
  const Daemon third({option});
  CHECK(run(PBOX_CTL_PATH, {"boxes", "--admin", "unix:" + folder.socket()}).status == 0);
}

TEST_CASE("users outside the socket's group are refused by its mode and by their identity") {
  if (geteuid() != 0) {
    WARN("skipped: only root may become other users");
    return;
  }
  const OpenFolder folder;
  const Daemon daemon({"--admin.socket=" + folder.socket()});
  const Arguments ask = {folder.pboxctl(), "boxes", "--admin", "unix:" + folder.socket()};

  const Output closed = run_as_nobody(ask);
  CHECK(closed.status == 1);
  CHECK_THAT(closed.errors, Contains("member of the socket's group"));

  // Members of the socket's group are admitted, also by a supplementary group. If root gives the
  // socket to another group, that group's members are admitted.
  CHECK(run_as_nobody(ask, "0").status == 0);
  REQUIRE(chown(folder.socket().c_str(), 0, 65534) == 0);
  CHECK(run_as_nobody(ask).status == 0);
  REQUIRE(chown(folder.socket().c_str(), 0, 0) == 0);

  // Even if the socket's mode lets everybody connect, the client's identity counts.
  REQUIRE(chmod(folder.socket().c_str(), 0666) == 0);
  const Output stranger = run_as_nobody(curl(folder.socket(), "/metrics"));
  CHECK_THAT(stranger.text, Contains("uid 65534 may not use this server"));
  CHECK(stranger.text.find("pbox_ready") == std::string::npos);
  const Output post =
      run_as_nobody({folder.pboxctl(), "drain", "b", "--admin", "unix:" + folder.socket()});
  CHECK(post.status == 1);
  CHECK_THAT(post.errors, Contains("uid 65534 may not use this server"));
  CHECK_THAT(run("curl", {"-sS", "--unix-socket", folder.socket(), "http://box/metrics"}).text,
             Contains("pbox_ready"));
}

TEST_CASE("over TCP a box answers under its own names only") {
  const Daemon daemon({"--box.name=box1", "--admin.hosts=metrics.example"});
  const auto ask = [&](const Arguments& more) {
    Arguments words = {"-sS",
                       "-o",
                       "/dev/null",
                       "-w",
                       "%{http_code}\n",
                       "--max-time",
                       "20",
                       "http://" + daemon.admin() + "/healthz"};
    words.insert(words.end(), more.begin(), more.end());
    return run("curl", words).text;
  };
  CHECK(ask({}) == "200\n");
  for (const char* name : {"box1", "BOX1:9540", "localhost", "metrics.example", "[::1]:1"}) {
    CHECK(ask({"-H", std::string("Host: ") + name}) == "200\n");
  }
  CHECK(ask({"-H", "Host: evil.example"}) == "421\n");
  CHECK(ask({"-H", "Origin: http://evil.example"}) == "403\n");
  CHECK(ask({"-H", "Origin: http://" + daemon.admin()}) == "200\n");
  CHECK(ask({"--http1.0", "-H", "Host:"}) == "200\n");
  CHECK(ask({"-H", "Host:"}) == "400\n");
  std::string host(256, '\0');
  REQUIRE(gethostname(host.data(), host.size() - 1) == 0);
  CHECK(ask({"-H", std::string("Host: ") + host.c_str()}) == "200\n");
}

TEST_CASE("over TLS the certificate decides what a client may do") {
  const auto signer = authority();
  const BoxKeys box(signer);
  const KeyFolder oper(signer, "pbox://rack/operator"), viewer(signer, "pbox://rack/viewer");
  const KeyFolder tenant(signer, "pbox://rack/tenant/acme/job/*/rank/*");
  const Daemon daemon(keyed(box, {"--admin.tls=on"}));
  const auto status = [&](const KeyFolder& keys, const std::string& path,
                          const Arguments& more = {}) {
    const std::string text = https(daemon, keys.path(), path, more).text;
    return text.substr(text.find_last_not_of('\n') - 2, 3);
  };
  for (const char* path : {"/", "/metrics", "/healthz", "/readyz"}) {
    INFO(path);
    CHECK(status(oper, path) == "200");
    CHECK(status(viewer, path) == "200");
    CHECK(status(box, path) == "200");
    CHECK(status(tenant, path) == "403");
  }
  for (const char* path : {"/api/v1/jobs", "/api/v1/boxes", "/api/v1/recorder"}) {
    INFO(path);
    CHECK(status(oper, path) == "200");
    for (const KeyFolder* keys : {static_cast<const KeyFolder*>(&box), &viewer, &tenant}) {
      CHECK(status(*keys, path) == "403");
    }
  }
  CHECK(status(oper, kDrainPath, kDrain) == "409");  // allowed, but the box is alone
  CHECK(status(viewer, kDrainPath, kDrain) == "403");
  CHECK_THAT(https(daemon, viewer.path(), "/api/v1/jobs").text,
             Contains("the keys of pbox://rack/viewer do not allow GET of /api/v1/jobs") &&
                 Contains("`pboxctl keys operator`"));
  // One connection serves several requests.
  const Output twice = https(daemon, oper.path(), "/healthz",
                             {"https://" + daemon.admin() + "/readyz", "-w", " %{num_connects}\n"});
  CHECK_THAT(twice.text, Contains(" 1") && Contains(" 0"));
  // The names that a browser sends, Host and Origin, are checked with TLS, too.
  CHECK(status(oper, "/metrics", {"-H", "Host: evil.example"}) == "421");
  CHECK(status(oper, "/metrics", {"-H", "Origin: https://" + daemon.admin()}) == "200");
}

TEST_CASE("pboxctl shows a box with TLS its keys, and both ends say what a refusal needs") {
  const auto signer = authority(), other = authority();
  const BoxKeys box(signer);
  const KeyFolder oper(signer, "pbox://rack/operator"), viewer(signer, "pbox://rack/viewer");
  const KeyFolder stranger(other, KeyFolder::order("pbox://rack/operator"),
                           other.certificate + signer.certificate);
  const KeyFolder late(signer, KeyFolder::order("pbox://rack/operator", -60), signer.certificate);
  Daemon daemon(keyed(box, {"--admin.tls=on"}));
  const auto ctl = [&](const Arguments& more) {
    Arguments words = {"jobs", "--admin", daemon.admin()};
    words.insert(words.end(), more.begin(), more.end());
    return run(PBOX_CTL_PATH, words);
  };
  CHECK(ctl({"--keys", oper.path()}).status == 0);
  setenv("PBOX_KEYS", oper.path().c_str(), 1);
  CHECK(ctl({}).status == 0);
  unsetenv("PBOX_KEYS");

  const Output looks = ctl({"--keys", viewer.path()});
  CHECK(looks.status == 1);
  CHECK_THAT(looks.errors, Contains("pbox://rack/viewer do not allow GET of /api/v1/jobs"));

  const Output plain = ctl({});
  CHECK(plain.status == 1);
  CHECK_THAT(plain.errors, Contains("speaks HTTP with TLS") && Contains("--keys"));
  CHECK_THAT(run("curl", {"-sS", "http://" + daemon.admin() + "/metrics"}).text,
             Contains("use https:// and a certificate"));
  CHECK(daemon.program().await_errors("use https:// and a certificate", kDeadlineMs));

  const Output foreign = ctl({"--keys", stranger.path()});
  CHECK(foreign.status == 1);
  CHECK_THAT(foreign.errors, Contains("does not accept") && Contains("keys of one cluster"));
  CHECK(daemon.program().await_errors("no authority in ca.pem has signed it", kDeadlineMs));

  const Output expired = ctl({"--keys", late.path()});
  CHECK(expired.status == 1);
  CHECK_THAT(expired.errors, Contains("expired on") && Contains("pboxctl keys"));
  CHECK(https(daemon, late.path(), "/metrics").status != 0);
  CHECK(daemon.program().await_errors("it has expired; make a new one", kDeadlineMs));

  CHECK(run("curl",
            {"-sS", "--cacert", box.path() + "/ca.pem", "https://" + daemon.admin() + "/metrics"})
            .status != 0);
  CHECK(daemon.program().await_errors("the peer has shown no certificate", kDeadlineMs));
  CHECK(https(daemon, box.path(), "/metrics", {"--tls-max", "1.2"}).status != 0);
  const std::string metrics = https(daemon, viewer.path(), "/metrics").text;
  CHECK_THAT(metrics, Contains("pbox_handshakes_refused_total "));
  CHECK(metrics.find("pbox_handshakes_refused_total 0") == std::string::npos);
}

TEST_CASE("keys shown to a server without TLS are an error that says so, on both ends") {
  const auto signer = authority();
  const BoxKeys box(signer);
  const KeyFolder oper(signer, "pbox://rack/operator");
  Daemon daemon(keyed(box));  // on loopback: no TLS
  const Output output =
      run(PBOX_CTL_PATH, {"jobs", "--admin", daemon.admin(), "--keys", oper.path()});
  CHECK(output.status == 1);
  CHECK_THAT(output.errors, Contains("does not speak TLS") && Contains("give no keys"));
  CHECK(daemon.program().await_errors("admin.tls = on", kDeadlineMs));
  CHECK(daemon.metric("pbox_handshakes_refused_total") == 1);
}

TEST_CASE("off loopback the HTTP server of a box with keys has TLS by itself") {
  const auto signer = authority();
  const BoxKeys box(signer);
  Daemon daemon(keyed(box, {"--admin.listen=0.0.0.0"}));
  const std::string port = daemon.admin().substr(daemon.admin().rfind(':'));
  CHECK_THAT(run("curl", {"-sS", "http://127.0.0.1" + port + "/metrics"}).text,
             Contains("use https://"));
  CHECK_THAT(
      run("curl", {"-sS", "--cacert", box.path() + "/ca.pem", "--cert", box.path() + "/cert.pem",
                   "--key", box.path() + "/key.pem", "https://127.0.0.1" + port + "/metrics"})
          .text,
      Contains("pbox_ready"));
  const Output refused = run(
      daemon_path(), daemon_arguments(keyed(box, {"--admin.listen=0.0.0.0", "--admin.tls=off"})));
  CHECK(refused.status == 2);
  CHECK_THAT(refused.errors, Contains("set admin.tls = auto"));
}

}  // namespace pbox::test

#include "weft/comm/tcp/master_address.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

namespace {

constexpr int default_port = 29500;  // PyTorch's

std::string value_of(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text == nullptr ? "" : text;
}

std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::string value = value_of(environment, name); !value.empty()) return value;
  return "";
}

std::string find_host(const Launch& launch, const Environment& environment) {
  if (std::string given = value_of(environment, "MASTER_ADDR"); !given.empty()) return given;
  if (launch.by == Launch::By::slurm) {
    if (first_of(environment, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) == "1") return "127.0.0.1";
    const std::string list = first_of(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (!list.empty()) return first_host(list);
  }
  if (launch.local_size == launch.size) return "127.0.0.1";
  throw UserError(
      "this is {}, and MASTER_ADDR is not set: set it to the name or address of rank 0's machine, on every rank "
      "(127.0.0.1 if all run on this one)",
      launch.text());
}

int port_in(const char* name, const std::string& text, std::int64_t above) {
  std::int64_t port = 0;
  if (!parse_int(text, port) || port < 1 || port + above > 65535)
    throw UserError("{}='{}' in the environment is not a port: give 1 to {}", name, text, 65535 - above);
  return static_cast<int>(port + above);
}

int find_port(const Launch& launch, const Environment& environment) {
  const std::string own = value_of(environment, "WEFT_MASTER_PORT"), given = value_of(environment, "MASTER_PORT");
  if (!own.empty()) return port_in("WEFT_MASTER_PORT", own, 0);
  // torchrun's agent keeps its own store at this port, unless it leaves that to rank 0.
  const bool taken = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (!given.empty()) return port_in("MASTER_PORT", given, taken ? 1 : 0);
  if (launch.by != Launch::By::slurm) return default_port;
  // Below the ports that systems assign automatically; two steps on a node rarely get the same one.
  std::int64_t job = 0, step = 0;
  parse_int(value_of(environment, "SLURM_JOB_ID"), job);
  parse_int(value_of(environment, "SLURM_STEP_ID"), step);
  return 20000 + static_cast<int>(static_cast<std::uint64_t>(job * 31 + step) % 12000);
}

std::string find_run(const Launch& launch, const Environment& environment) {
  if (std::string given = first_of(environment, {"WEFT_RUN_ID", "TORCHELASTIC_RUN_ID"}); !given.empty()) return given;
  if (launch.by == Launch::By::slurm)
    return fmt::format("job {} step {}", value_of(environment, "SLURM_JOB_ID"), value_of(environment, "SLURM_STEP_ID"));
  return launch.run;
}

}  // namespace

std::string first_host(std::string_view node_list) {
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const std::size_t close = std::min(node_list.find(']', i), node_list.size());
    const std::string_view inside = node_list.substr(i + 1, close - i - 1);
    host += inside.substr(0, inside.find_first_of("-,"));
    i = close;
  }
  return host;
}

MasterAddress find_master_address(const Launch& launch, const Environment& environment) {
  MasterAddress master;
  master.endpoint = {find_host(launch, environment), find_port(launch, environment)};
  master.one_machine = names_loopback(master.endpoint.host);
  master.run_id = find_run(launch, environment);
  return master;
}

}  // namespace weft

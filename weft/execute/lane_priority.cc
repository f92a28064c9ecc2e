#include "weft/execute/lane_priority.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft {

void put_communication_first() {
  if (syscall(SYS_sched_getscheduler, 0) != SCHED_NORMAL) return;
  constexpr int nice = -10;  // for root, or within RLIMIT_NICE
  sched_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.sched_policy = SCHED_NORMAL;
  attributes.sched_runtime = 100'000;  // ns; since Linux 6.12 a short slice preempts a longer one, for any user
  attributes.sched_nice = nice;
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) == 0) return;
  attributes.sched_nice = getpriority(PRIO_PROCESS, 0);
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace weft

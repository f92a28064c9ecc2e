// timeline_sample NAME FILE: writes a page to look at (see tests/browser/timeline_page_test.py).
#include <string>

#include <fmt/format.h>

#include "tests/browser/timeline_samples.h"
#include "weft/base/file.h"
#include "weft/plan/draw/perfetto.h"
#include "weft/plan/draw/timeline_page.h"

namespace weft {

namespace {

// Names that would break out of the page if they were not escaped.
Timeline hostile() {
  Timeline t;
  t.title = "</title><script>document.title = 'broken'</script>";
  t.labels = {{"</script><script>document.title = 'broken'</script>", "<!--<script>", Lane::compute, Phase::forward}};
  t.labels[0].parameters = {"<img src=x onerror=\"document.title = 'broken'\">"};
  t.events = {{0, 0, 0, 0, 1e-3}};
  return t;
}

int run(const std::string& name, const std::string& file) {
  const SampleShape small{.replicas = 4, .micro_batches = 8, .layers = 3, .woven = true};
  std::string page;
  if (name == "1x1") {
    page = timeline_page(sample_timeline({}));
  } else if (name == "4x8") {
    page = timeline_page(sample_timeline(small));
  } else if (name == "4x8-plain") {
    page = timeline_page(sample_timeline({.replicas = 4, .micro_batches = 8, .layers = 3}));
  } else if (name == "4x8-both") {
    SampleShape noisy = small;
    noisy.noise = 0.15;
    const Timeline actual = sample_timeline(noisy);
    page = timeline_page(sample_timeline(small), &actual);
  } else if (name == "4x8-slow") {  // as of a training on a machine that is slower than the estimate's
    SampleShape noisy = small;
    noisy.noise = 4;
    Timeline plan = sample_timeline(small), actual = sample_timeline(noisy);
    plan.title = actual.title = "weft train: last step";
    plan.about = actual.about = "[*E][*E][*E] · 2.3 M parameters · 4 ranks · 4 expert ranks · f32";
    plan.times = "estimated for 100.0 GFLOP/s";
    actual.times = "measured on cpu (AVX2)";
    plan.reserved = actual.reserved = 300 << 20;
    page = timeline_page(plan, &actual);
  } else if (name == "4x8-trace") {
    page = perfetto_trace(sample_timeline(small));
  } else if (name == "64x64") {
    page = timeline_page(
        sample_timeline({.stages = 8, .replicas = 8, .micro_batches = 64, .layers = 16, .woven = true, .noise = 0.05}));
  } else if (name == "hostile") {
    page = timeline_page(hostile());
  } else if (name == "empty") {
    page = timeline_page(Timeline{.title = "nothing"});
  } else {
    fmt::print(stderr, "no sample '{}'\n", name);
    return 2;
  }
  write_file_atomically(file, page);
  return 0;
}

}  // namespace

}  // namespace weft

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "usage: timeline_sample NAME FILE\n");
    return 2;
  }
  return weft::run(words[1], words[2]);
}

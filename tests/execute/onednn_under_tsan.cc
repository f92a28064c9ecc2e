// Under ThreadSanitizer, which does not see how oneDNN synchronizes: it is not instrumented. Threads that make their first
// products at once share its cache of kernels, and a lock in it that one of them has just made looks like a race. What Weft
// does around its calls is checked.
#if defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }

#endif

/*
 * pause: the process that keeps a pod's namespaces open.
 *
 * It sleeps until a signal comes. SIGTERM and SIGINT end it at once; at SIGCHLD it reaps every zombie, because with a
 * shared PID namespace it is process 1 and orphans of all the pod's containers become its children.
 *
 * The three signals are blocked and waited for, never handled: the kernel drops a signal with default action that is
 * sent to process 1, but it keeps a blocked one (signal(7), pid_namespaces(7)). So no handler, no restorer and no C
 * library is needed; the program is a few hundred bytes of code, and links with nothing but gcc itself.
 */

#if defined(__x86_64__)
enum { SYS_RT_SIGPROCMASK = 14, SYS_WAIT4 = 61, SYS_RT_SIGTIMEDWAIT = 128, SYS_EXIT_GROUP = 231 };

static long call(long number, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
enum { SYS_RT_SIGPROCMASK = 135, SYS_WAIT4 = 260, SYS_RT_SIGTIMEDWAIT = 137, SYS_EXIT_GROUP = 94 };

static long call(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "pause: no system call numbers for this architecture yet: add them beside x86_64 and aarch64"
#endif

/* Numbers that x86_64 and aarch64 share (asm-generic). */
enum { SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, SIG_BLOCK = 0, WNOHANG = 1 };

static unsigned long bit(int signal) { return 1UL << (signal - 1); }

__attribute__((noreturn, used)) void _start(void)
{
	unsigned long set = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);

	call(SYS_RT_SIGPROCMASK, SIG_BLOCK, (long)&set, 0, sizeof set);
	for (;;) {
		long signal = call(SYS_RT_SIGTIMEDWAIT, (long)&set, 0, 0, sizeof set);

		if (signal == SIGTERM || signal == SIGINT)
			for (;;)
				call(SYS_EXIT_GROUP, 0, 0, 0, 0);
		/* One SIGCHLD may stand for many children. An interrupted wait (EINTR) also comes here; it costs nothing. */
		while (call(SYS_WAIT4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
